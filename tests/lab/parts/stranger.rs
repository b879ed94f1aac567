//! What runs in the lab's pods, as a static program: given an address and a word, it says the word to everybody who
//! connects there; given nothing it sleeps, which is all that the first container of a pod has to do.

use std::{env, io::Write as _, net::TcpListener, thread};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, word] = arguments.as_slice() else {
        loop {
            thread::park();
        }
    };
    let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    for mut client in listener.incoming().flatten() {
        // A client may have closed the connection.
        client.write_all(word.as_bytes()).ok();
    }
}

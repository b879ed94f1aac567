//! The static program in the lab's pods. With an address and a word, the program sends the word to every client that
//! connects to the address. Without arguments the program sleeps, like the first container of a pod.

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
        // Ignores errors, because a client may have closed the connection.
        client.write_all(word.as_bytes()).ok();
    }
}

//! Writes long documents outside of the event loop, and sends them in chunks. A document needs memory for only a few
//! chunks, even if the document is long or its reader is slow.

use std::{
    io::{self, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use hyper::body::{Bytes, Frame};
use tokio::{
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{Receiver, Sender, channel},
    },
    task::spawn_blocking,
};

use super::refusal::Refusal;

/// The largest number of documents that are written at the same time. Each document keeps its snapshot in memory.
const AT_ONCE: usize = 2;
const CHUNK: usize = 64 << 10;
const WAITING: usize = 2;

pub(super) struct Documents(Arc<Semaphore>);

impl Documents {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }

    /// Sends a JSON document. Returns a refusal if too many documents are being written.
    pub(super) fn send<F>(&self, write: F) -> Result<Response, Refusal>
    where
        F: FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else { return Err(Refusal::Busy) };
        let (sender, receiver) = channel(WAITING);
        spawn_blocking(move || {
            let mut chunks = Chunks {
                sender,
                chunk: Vec::with_capacity(CHUNK),
                unfinished: Some(io::Error::other("the writer failed")),
                _permit: permit,
            };
            chunks.unfinished = write(&mut chunks).and_then(|()| chunks.flush()).err();
        });
        Ok(([(header::CONTENT_TYPE, "application/json")], Body::new(ChunkedBody(receiver))).into_response())
    }
}

/// A writer that waits until the client has read earlier chunks.
struct Chunks {
    sender: Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    /// The reason why the document is still incomplete. `None` after the last chunk.
    unfinished: Option<io::Error>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Some(error) = self.unfinished.take() {
            // The connection ends without the last chunk, so the client knows that the document is incomplete. If the
            // client has closed the connection, this call does nothing.
            drop(self.sender.blocking_send(Err(error)));
        }
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK)));
        self.sender.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct ChunkedBody(Receiver<io::Result<Bytes>>);

impl hyper::body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn length(response: Response) -> usize {
        axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body").len()
    }

    #[tokio::test]
    async fn a_document_comes_whole_whatever_its_length() {
        for wanted in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 10 * CHUNK + 7] {
            // The writer may still run after the reader has received the whole document.
            let documents = Documents::new();
            let write = move |out: &mut dyn Write| out.write_all(&vec![b'x'; wanted]);
            let response = documents.send(write).expect("a document");
            assert_eq!(length(response).await, wanted);
        }
    }

    #[tokio::test]
    async fn a_silent_reader_holds_a_few_chunks_and_delays_a_few_documents_at_most() {
        let documents = Documents::new();
        let (sent, mut written) = channel::<usize>(10_000);
        let silent: Vec<Response> = (0..AT_ONCE)
            .map(|_| {
                let sent = sent.clone();
                let endless = move |out: &mut dyn Write| {
                    loop {
                        out.write_all(&[b'x'; CHUNK])?;
                        sent.try_send(CHUNK).ok();
                    }
                };
                documents.send(endless).expect("a document")
            })
            .collect();
        let refused = documents.send(|_| Ok(())).expect_err("one too many");
        assert_eq!(refused, Refusal::Busy);
        let chunks = async { while written.recv().await.is_some() {} };
        drop(sent);
        assert!(
            tokio::time::timeout(Duration::from_millis(300), chunks).await.is_err(),
            "the writers wait for a reader"
        );
        assert!(written.len() <= AT_ONCE * (WAITING + 1), "{}", written.len());
        drop(silent);
        while documents.0.available_permits() < AT_ONCE {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_document_that_cannot_be_written_is_never_taken_for_a_whole_one() {
        let fails = |out: &mut dyn Write| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        };
        let response = Documents::new().send(fails).expect("a document");
        assert!(axum::body::to_bytes(response.into_body(), usize::MAX).await.is_err());
    }

    #[tokio::test]
    async fn a_document_whose_writer_panics_is_never_taken_for_a_whole_one() {
        let panics = |out: &mut dyn Write| {
            out.write_all(b"half")?;
            out.flush()?;
            panic!("a bug of a writer")
        };
        let response = Documents::new().send(panics).expect("a document");
        assert!(axum::body::to_bytes(response.into_body(), usize::MAX).await.is_err());
    }
}

//! Bearer tokens: as they stand in files and kubeconfigs, with the newline that editors add.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::HeaderValue;
use tokio::time::Instant;

use super::credential_files::read;

/// How old a token from a file may be: kubelet replaces it long before it expires.
const FRESH: Duration = Duration::from_secs(60);

/// A token without the white space around it, as kubectl has it. The error does not show it.
fn trimmed(token: &str) -> Result<&str, String> {
    let token = token.trim();
    if token.is_empty() {
        return Err("the token is empty".to_owned());
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token holds characters that no token has: white space, control or non-ASCII ones".to_owned());
    }
    Ok(token)
}

/// The value of the header `Authorization` with this token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", trimmed(token)?)).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A token in a file, which is read again every minute. A file that is gone or unusable by then leaves the last token.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
    kept: Arc<Mutex<(HeaderValue, Instant)>>,
}

impl TokenFile {
    /// Reads it for the first time. The error names the file.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let kept = Arc::new(Mutex::new((from_file(path)?, Instant::now())));
        Ok(Self { path: path.to_owned(), kept })
    }

    /// The value of the header `Authorization`.
    pub(super) fn authorization(&self) -> HeaderValue {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.1.elapsed() >= FRESH {
            kept.1 = Instant::now();
            if let Ok(value) = from_file(&self.path) {
                kept.0 = value;
            }
        }
        kept.0.clone()
    }
}

fn from_file(path: &Path) -> Result<HeaderValue, String> {
    bearer(&read(path)?).map_err(|what| format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn white_space_around_a_token_does_not_count_and_within_it_is_named_without_showing_it() {
        for token in ["secret", "secret\n", "secret\r\n", "\u{a0}secret\n\n", " secret\t"] {
            assert_eq!(trimmed(token), Ok("secret"), "{token:?}");
        }
        for token in ["", "\n", "sec\nret", "sec\0ret", "sec ret", "secr\u{e9}t"] {
            let said = trimmed(token).expect_err("it is none");
            assert!(said.starts_with("the token ") && !said.contains("sec"), "{said}");
        }
    }

    #[test]
    fn a_file_is_read_again_every_minute_and_one_that_is_gone_leaves_the_last_token() {
        let age = |token: &TokenFile| {
            let mut kept = token.kept.lock().expect("no panic");
            kept.1 = kept.1.checked_sub(FRESH).expect("a machine that runs for a minute");
        };
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        fs::write(&path, "first\n").expect("a file");
        let token = TokenFile::read(&path).expect("a token");
        assert_eq!(token.authorization(), "Bearer first");
        assert!(token.authorization().is_sensitive());
        fs::write(&path, "second\r\n").expect("a file");
        assert_eq!(token.authorization(), "Bearer first");
        age(&token);
        assert_eq!(token.authorization(), "Bearer second");
        fs::remove_file(&path).expect("a file");
        age(&token);
        assert_eq!(token.authorization(), "Bearer second");
        let said = TokenFile::read(&path).expect_err("it is gone");
        assert!(said.contains("token cannot be read"), "{said}");
    }
}

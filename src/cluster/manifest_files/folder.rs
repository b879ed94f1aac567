//! The files of a folder that may hold manifests.

use std::{
    fs,
    io::{self, Error, ErrorKind},
    path::{Path, PathBuf},
};

use crate::cluster::input::{Accepted, Input};

/// How files of manifests end.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// The most files of one folder, with those below it.
const MOST: usize = 100_000;
/// The deepest folder that is looked into, counted from the one that a person named.
const DEEPEST: usize = 64;

/// What a path leads to.
pub(super) struct Found {
    pub(super) files: Vec<Input>,
    /// What a person named may be a pipe. What a folder happens to hold may not: nobody may write into it.
    pub(super) accepted: Accepted,
}

/// The files of a path: itself, or those below a folder by their names. Links to folders are not followed, and what begins
/// with a dot was not meant.
///
/// # Errors
/// When a folder cannot be listed, or holds too much.
pub(super) fn files(path: &Path) -> io::Result<Found> {
    let input = Input::from(path.to_owned());
    if input == Input::Stdin || !fs::metadata(path)?.is_dir() {
        return Ok(Found { files: vec![input], accepted: Accepted::Anything });
    }
    let mut files = Vec::new();
    collect(path, DEEPEST, &mut files)?;
    // Of the folder that a person is in, the names alone say where they are.
    let named = files.into_iter().map(|path| path.strip_prefix(".").map_or(path.clone(), PathBuf::from));
    Ok(Found { files: named.map(Input::File).collect(), accepted: Accepted::RegularFiles })
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let below = depth.checked_sub(1).ok_or_else(|| too_much(folder, "has folders that are too deep"))?;
            collect(&path, below, files)?;
        } else if path.extension().is_some_and(|ending| ENDINGS.iter().any(|it| ending.eq_ignore_ascii_case(it))) {
            files.push(path);
        }
        if files.len() > MOST {
            return Err(too_much(folder, "has too many files"));
        }
    }
    Ok(())
}

fn too_much(folder: &Path, what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{} {what}", folder.display()))
}

//! The hook in a build without the feature `program`. The functions have the same signatures as with this feature, but
//! [`Hook::attach`] always fails. The module `attached` documents the functions.

use std::{convert::Infallible, path::Path, time::Duration};

use crate::{Bind, Claim, Exempt, MapFailed, Mode, NotAttached, Refusal};

/// A value of this type cannot exist, because `Infallible` has no values.
#[derive(Debug)]
pub struct Hook(Infallible);

impl Hook {
    /// Always returns [`NotAttached::NotBuilt`].
    pub fn attach(_cgroup: &Path, _mode: Mode) -> Result<Self, NotAttached> {
        Err(NotAttached::NotBuilt)
    }

    /// Never runs, because this build has no value of [`Hook`].
    pub fn refusal(&self) -> Option<Refusal> {
        match self.0 {}
    }

    /// Never runs, because this build has no value of [`Hook`].
    pub fn replace(&mut self, _exempt: &[Exempt], _claims: &[Claim]) -> Result<(), MapFailed> {
        match self.0 {}
    }

    /// Never runs, because this build has no value of [`Hook`].
    pub fn fresh_for(&mut self, _time: Duration) -> Result<(), MapFailed> {
        match self.0 {}
    }

    /// Never runs, because this build has no value of [`Hook`].
    #[expect(clippy::should_implement_trait, reason = "there may be a next one later")]
    pub fn next(&mut self) -> Option<Bind> {
        match self.0 {}
    }

    /// Never runs, because this build has no value of [`Hook`].
    pub fn lost(&self) -> Result<u64, MapFailed> {
        match self.0 {}
    }
}

impl std::os::fd::AsFd for Hook {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_the_program_names_what_it_lacks() {
        let error = Hook::attach(Path::new("/sys/fs/cgroup"), Mode::Report).expect_err("no program");
        assert_eq!(
            error.to_string(),
            "this build has no bind hook: use the image or a package of a release, or build with --features bind-hook"
        );
    }
}

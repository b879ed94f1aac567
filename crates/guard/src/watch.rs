//! Notices that a process wrote a file.

pub(crate) use self::system::Watch;

#[cfg(target_os = "linux")]
mod system {
    use std::{fs::File, io, path::Path};

    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    /// An inotify watch of a file of procfs.
    #[derive(Debug)]
    pub(crate) struct Watch {
        events: Inotify,
        /// The kernel keeps the inode of an open file. If no process had the file open, the kernel could make a new
        /// inode for the path, and the watch would not report writes of the new inode.
        _file: File,
    }

    impl Watch {
        pub(crate) fn start(path: &Path) -> io::Result<Self> {
            let file = File::open(path)?;
            let events = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            events.add_watch(path, AddWatchFlags::IN_MODIFY)?;
            Ok(Self { events, _file: file })
        }

        /// Whether a process wrote the file since the last call.
        pub(crate) fn was_written(&self) -> bool {
            // inotify merges equal unread events, so one call reads all events. Without an event, the call fails with
            // EAGAIN.
            self.events.read_events().is_ok_and(|events| !events.is_empty())
        }
    }
}

// macOS has no inotify. Only the plugin runs on macOS.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::{io, path::Path};

    /// A type without values.
    #[derive(Debug)]
    pub(crate) enum Watch {}

    impl Watch {
        pub(crate) fn start(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn was_written(&self) -> bool {
            match *self {}
        }
    }
}

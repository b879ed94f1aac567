//! Loads the configuration again while the agent runs.

use tracing::{info, warn};

use super::Config;

/// Where the configuration comes from; called again and again. The error is one line for a person.
pub(super) type Load = dyn Fn() -> Result<Config, String>;

/// Loads the configuration, and remembers what was wrong with it.
pub(super) struct Reloader {
    load: Box<Load>,
    /// What was wrong with the configuration when it was last loaded.
    last_error: Option<String>,
}

impl Reloader {
    pub(super) fn new(load: Box<Load>) -> Self {
        Self { load, last_error: None }
    }

    /// Loads the configuration again. An invalid one changes nothing, and is logged once, or whenever a person
    /// requested it with a signal.
    pub(super) fn reload(&mut self, config: &mut Config, requested: bool) {
        match (self.load)() {
            Ok(new) => {
                let recovered = self.last_error.take().is_some();
                if new == *config {
                    if requested || recovered {
                        info!("the configuration is unchanged");
                    }
                } else if config.adopt(new) {
                    warn!("the configuration changed; what it says of sources and places holds from the next start");
                } else {
                    info!(interval = ?config.interval, "the configuration was read anew");
                }
            }
            Err(error) if requested || self.last_error.as_ref() != Some(&error) => {
                warn!(%error, "the configuration cannot be used, the one before stays");
                self.last_error = Some(error);
            }
            Err(_) => {}
        }
    }
}

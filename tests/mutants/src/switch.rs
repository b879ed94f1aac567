//! Which condition of the copy is inverted: the environment says its number. A file of the copy, not of this program.

use std::sync::LazyLock;

static INVERTED: LazyLock<Option<usize>> = LazyLock::new(|| std::env::var("PORTREEVE_MUTANT").ok()?.parse().ok());

pub(crate) fn flip<T: Answer>(condition: usize, answer: T) -> T {
    if *INVERTED == Some(condition) { answer.inverted() } else { answer }
}

/// Something that is true or false, where it is known.
pub(crate) trait Answer {
    fn inverted(self) -> Self;
}

impl Answer for bool {
    fn inverted(self) -> Self {
        !self
    }
}

impl Answer for &bool {
    fn inverted(self) -> Self {
        if *self { &false } else { &true }
    }
}

impl Answer for Option<bool> {
    fn inverted(self) -> Self {
        self.map(|answer| !answer)
    }
}

impl<E> Answer for Result<bool, E> {
    fn inverted(self) -> Self {
        self.map(|answer| !answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_stays_so() {
        assert_eq!((true.inverted(), (&false).inverted()), (false, &true));
        assert_eq!((Some(true).inverted(), None::<bool>.inverted()), (Some(false), None));
        assert_eq!((Ok::<_, ()>(true).inverted(), Err::<bool, _>(()).inverted()), (Ok(false), Err(())));
        assert!(flip(0, true), "numbers begin with 1");
    }
}

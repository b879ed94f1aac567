//! The numbers of sockets, and how they are printed.

/// The numbers of sockets on the host, the smallest first. The benchmark measures memory and growth with each number of
/// sockets.
pub fn sizes(small: bool) -> &'static [usize] {
    if small { &[2_000, 10_000, 30_000] } else { &[10_000, 100_000, 200_000, 500_000] }
}

pub fn short(count: usize) -> String {
    if count > 0 && count.is_multiple_of(1000) { format!("{}k", count / 1000) } else { count.to_string() }
}

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portreeve::kernel::fuzzing::sock_diag_message(bytes));

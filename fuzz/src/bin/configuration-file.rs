#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portreeve::cli::fuzzing::configuration_file(bytes));

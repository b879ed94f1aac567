#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portreeve::cluster::fuzzing::manifest(bytes));

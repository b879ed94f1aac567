#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portreeve::kernel::fuzzing::proc_net_file(bytes));

//! One target under libFuzzer, which brings `main`. `ILB_FUZZ_TARGET` names the target; the
//! arguments are libFuzzer's.

#![no_main]

use std::sync::OnceLock;

use fuzz::TARGETS;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

/// libFuzzer calls this once, before the first input.
// SAFETY: libFuzzer reserves this name for this purpose, and nothing else in the program has it.
#[unsafe(no_mangle)]
extern "C" fn LLVMFuzzerInitialize(_argc: *mut i32, _argv: *mut *mut *mut u8) -> i32 {
    let wanted = std::env::var("ILB_FUZZ_TARGET").unwrap_or_default();
    let Some((_, run)) = TARGETS.iter().find(|(name, _)| *name == wanted) else {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("ILB_FUZZ_TARGET is {wanted:?}; wanted one of {}", names.join(", "));
        std::process::exit(2);
    };
    TARGET.get_or_init(|| *run);
    // libFuzzer keeps the input of a process that aborts. A panic must not unwind into its frames.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
    0
}

/// libFuzzer calls this once per input.
///
/// # Safety
///
/// `data` points to `size` readable bytes, or `size` is 0.
// SAFETY: libFuzzer reserves this name for this purpose, and nothing else in the program has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn LLVMFuzzerTestOneInput(data: *const u8, size: usize) -> i32 {
    let input = if size == 0 {
        &[]
    } else {
        // SAFETY: libFuzzer passes a buffer of `size` bytes that lives until this function returns.
        unsafe { std::slice::from_raw_parts(data, size) }
    };
    TARGET.get().expect("libFuzzer initializes before the first input")(input);
    0
}

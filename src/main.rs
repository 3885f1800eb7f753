//! The `autoplan` command.

fn main() -> std::process::ExitCode {
    give_back_large_memory();
    autoplan::cli::run()
}

/// Has the GNU allocator give back to the system what large vectors took. By itself it does so only until the first of
/// them is freed, and a search of a million GPUs is left with up to 27 MB that nothing uses.
fn give_back_large_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator is written in C")]
    // SAFETY: it sets a number inside the allocator, and no other thread is there yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
    }
}

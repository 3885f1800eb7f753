//! The `autoplan` command.

fn main() -> std::process::ExitCode {
    autoplan::cli::run()
}

//! The bench's worker processes as a program of their own, for the smoke tests; `onecopy bench` starts itself instead.

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    onecopy_bench::worker_main(&args)
}

//! The report for a person.

use std::fmt::Write;

use clap::builder::styling::{AnsiColor, Style};

use super::report::Report;
use super::size::size;

const HEADING: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const LESSER: Style = AnsiColor::Yellow.on_default();
const ABSENT: Style = Style::new().dimmed();

/// Width of the first column.
const NAME: usize = 18;

/// The whole report, with escape codes: who prints it strips them where they are not wanted.
pub fn human(report: &Report) -> String {
    let (machine, probes) = (&report.machine, &report.probes);
    let mut out = String::new();
    let mut line = |mark: (&str, Style), name: &str, detail: &str| {
        let (mark, style) = mark;
        let _ = writeln!(out, "  {style}{mark}{style:#} {name:NAME$} {detail}");
    };
    const FACT: (&str, Style) = ("·", ABSENT);

    line(FACT, "kernel", &format!("{} {}", machine.kernel, machine.architecture));
    let model = if machine.cpu.model.is_empty() { "CPU" } else { &machine.cpu.model };
    line(FACT, "cpu", &format!("{model}, {} allowed", machine.cpu.allowed));
    line(FACT, "caches", &caches(report));
    line(FACT, "copy kernels", &kernels(report));
    line(FACT, "memory", &memory(report));
    line(FACT, "user", &machine.user.described());
    line(FACT, "limits", &limits(report));
    for (name, probe) in [
        ("sealed memfd", &probes.memfd_seals),
        ("noexec memfd", &probes.memfd_noexec),
        ("shared memory", &probes.upgrade),
        ("datagrams", &probes.datagrams),
        ("references", &probes.references),
        ("io_uring", &probes.io_uring),
        ("kernel by io_uring", &probes.kernel_tcp),
        ("device memory", &probes.device_memory),
        ("dma-buf", &probes.dma_buf),
        ("NIC to device", &probes.nic_memory),
        ("TAP", &probes.tap),
        ("AF_XDP", &probes.xdp),
        ("CUDA", &probes.cuda),
    ] {
        line(if probe.works { ("✓", GOOD) } else { ("–", ABSENT) }, name, &probe.detail);
    }
    let found = std::mem::take(&mut out);

    for feature in &report.features {
        let (mark, style) = if feature.best { ("✓", GOOD) } else { ("!", LESSER) };
        let _ = writeln!(out, "  {style}{mark}{style:#} {:NAME$} {}", feature.name, feature.uses);
        for (word, text) in [("because", &feature.why), ("better:", &feature.remedy)] {
            if let Some(text) = text {
                let _ = writeln!(out, "    {:NAME$} {ABSENT}{word}{ABSENT:#} {text}", "");
            }
        }
    }
    let lesser = report.features.iter().filter(|feature| !feature.best).count();
    let end = match lesser {
        0 => format!("{GOOD}Every feature has its best way here.{GOOD:#}"),
        1 => format!("{LESSER}One feature could do better{LESSER:#}: see the line marked !."),
        n => format!("{LESSER}{n} features could do better{LESSER:#}: see the lines marked !."),
    };
    format!(
        "{HEADING}This machine has{HEADING:#}\n{found}\n{HEADING}onecopy will use{HEADING:#}\n{out}\n{end}\n"
    )
}

fn caches(report: &Report) -> String {
    if let Some(profile) = &report.copy.profile {
        let steps: Vec<_> =
            profile.steps.iter().map(|(bytes, ns)| format!("{ns:.1} ns up to {}", size(*bytes))).collect();
        return format!("{}, as `onecopy tune` measured", steps.join(", "));
    }
    let caches: Vec<_> = report
        .machine
        .cpu
        .caches
        .iter()
        .map(|cache| format!("L{} {}", cache.level, size(cache.bytes)))
        .collect();
    if caches.is_empty() {
        "not known".to_owned()
    } else {
        format!("{}, as the CPU reports", caches.join(", "))
    }
}

fn kernels(report: &Report) -> String {
    report.copy.kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", ")
}

fn memory(report: &Report) -> String {
    let memory = &report.machine.memory;
    let mut text = size(memory.total);
    let (total, free) = memory.huge_pages;
    match memory.huge_page {
        Some(page) if total > 0 => {
            let _ = write!(text, ", {free} of {total} huge pages of {} free", size(page));
        }
        Some(page) => {
            let _ = write!(text, ", no huge pages of {} set aside", size(page));
        }
        None => text.push_str(", no huge pages in this kernel"),
    }
    if let Some(word) = &memory.shmem_huge {
        let _ = write!(text, ", transparent ones for shared memory: {word}");
    }
    text
}

fn limits(report: &Report) -> String {
    let limits = &report.machine.limits;
    let number = |value: Option<u64>| value.map_or("no limit".to_owned(), |value| value.to_string());
    let bytes = |value: Option<u64>| value.map_or("unknown".to_owned(), size);
    format!(
        "{} open files, {} mappings, backlog {}, socket buffers {} send, {} receive",
        number(limits.open_files),
        number(limits.mappings),
        number(limits.backlog),
        bytes(limits.send_buffer),
        bytes(limits.receive_buffer)
    )
}

//! The table on a terminal. Whatever ends it (q, a signal, an error, a panic), the terminal is as it was.

use super::look::{Between, Look};
use crate::ss::{COLUMNS, Which, cells};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use rustix::fd::OwnedFd;
use rustix::pipe::PipeFlags;
use std::time::{Duration, Instant};

/// Columns that stay where they are while the others move: what the row is about.
const FIXED: usize = 2;

/// The least of a last column's text that is worth showing.
const CUT: usize = 4;

/// Where the user is in the table.
#[derive(Debug, Default)]
struct Place {
    rows: TableState,
    /// The first column behind the fixed ones.
    column: usize,
    /// Whether there are more behind those on the screen.
    more: bool,
}

/// Longest wait for a key before signals are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Runs until the user has enough.
pub fn run(which: &Which, interval: Duration) -> anyhow::Result<()> {
    let (told, tell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
    {
        onecopy_sys::signal::catch(signal.as_raw(), tell.try_clone()?, true)?;
    }
    // Its panic hook gives the terminal back, too.
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, which, interval, &told);
    ratatui::restore();
    result
}

fn live(
    terminal: &mut DefaultTerminal,
    which: &Which,
    interval: Duration,
    told: &OwnedFd,
) -> anyhow::Result<()> {
    let mut look = Look::now(which)?;
    std::thread::sleep(LOOK);
    let mut place = Place { rows: TableState::default().with_selected(0), ..Place::default() };
    let mut now = look.again()?;
    loop {
        terminal.draw(|frame| draw(frame, &now, &mut place, interval))?;
        let due = Instant::now() + interval;
        while let left = due.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            if rustix::io::read(told, &mut [0; 8]).is_ok() {
                return Ok(());
            }
            if !event::poll(left.min(LOOK))? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Down | KeyCode::Char('j') => place.rows.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => place.rows.select_previous(),
                    KeyCode::Home => place.rows.select_first(),
                    KeyCode::End => place.rows.select_last(),
                    KeyCode::Right | KeyCode::Char('l') if place.more => place.column += 1,
                    KeyCode::Left | KeyCode::Char('h') => place.column = place.column.saturating_sub(1),
                    _ => continue,
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            terminal.draw(|frame| draw(frame, &now, &mut place, interval))?;
        }
        now = look.again()?;
    }
}

/// Whether the fixed columns have room for another beside them: where not, they move with the others.
fn stay(widths: &[usize], column: usize, room: usize) -> bool {
    let fixed: usize = widths[..FIXED].iter().map(|width| width + 1).sum();
    fixed + widths[column.max(FIXED)] <= room
}

/// Which columns are shown in so much room, and how wide, if `column` is the first that moves. None is cut but a last one of
/// text: what is left of a number looks like another number.
fn fitting(widths: &[usize], column: usize, room: usize) -> Vec<(usize, usize)> {
    let stay = stay(widths, column, room);
    let fixed = if stay { 0..FIXED } else { 0..0 };
    let from = if stay { column.max(FIXED) } else { column };
    let (mut shown, mut left) = (Vec::new(), room);
    for i in fixed.chain(from..widths.len()) {
        let cut = widths[i].min(left);
        if cut < widths[i] && (COLUMNS[i].1 || cut < CUT) {
            break;
        }
        shown.push((i, cut));
        left = left.saturating_sub(cut + 1);
    }
    shown
}

fn draw(frame: &mut Frame<'_>, now: &Between, place: &mut Place, interval: Duration) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let sockets = &now.found.sockets;
    let title = format!("onecopy top  {} sockets, by the second, every {interval:?}", sockets.len());
    frame.render_widget(Paragraph::new(title).style(Modifier::BOLD), head);
    let rows: Vec<_> = sockets.iter().map(|socket| cells(socket, Some(&now.rates))).collect();
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        cells.max(COLUMNS[i].0.len())
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let room = usize::from(body.width);
    place.column = place.column.min(widths.len() - 1);
    if stay(&widths, place.column, room) {
        place.column = place.column.max(FIXED);
    }
    let shown = fitting(&widths, place.column, room);
    place.more = shown.last().is_none_or(|(i, width)| i + 1 < widths.len() || *width < widths[*i]);
    let text = |i: usize, cell: &str| {
        let line = Line::from(cell.to_owned());
        if COLUMNS[i].1 { line.right_aligned() } else { line }
    };
    let header = Row::new(shown.iter().map(|(i, _)| text(*i, COLUMNS[*i].0)));
    let header = header.style(Style::from(Modifier::UNDERLINED));
    let lines = rows.iter().map(|row| Row::new(shown.iter().map(|(i, _)| text(*i, &row[*i]))));
    let constraints = shown.iter().map(|(_, width)| Constraint::Length(*width as u16));
    let table = Table::new(lines, constraints).header(header).row_highlight_style(Modifier::REVERSED);
    frame.render_stateful_widget(table, body, &mut place.rows);
    let more = if place.more || place.column > FIXED { ", left and right show other columns" } else { "" };
    let skipped = match now.found.skipped.len() {
        0 => String::new(),
        n => format!("   {n} passed over: onecopy ss -v says why"),
    };
    frame.render_widget(Paragraph::new(format!("q quits, arrows move{more}{skipped}")), foot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy::unix::Stream;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn a_socket_of_this_process_is_on_the_screen() {
        let (a, b) = Stream::pair().unwrap();
        let mut look = Look::now(&Which::default()).unwrap();
        a.send(&vec![1; 50_000]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        let now = look.again().unwrap();
        let mine = now.found.sockets.iter().filter(|s| s.pid == std::process::id()).count();
        assert!(mine >= 2, "{:?}", now.found);
        // (With room for all that others have on this machine.)
        let tall = 60 + now.found.sockets.len() as u16;
        for (width, height) in [(200, tall), (40, 5), (1, 1), (80, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut place = Place::default();
            terminal.draw(|frame| draw(frame, &now, &mut place, Duration::from_secs(1))).unwrap();
            if width == 200 {
                let text = terminal.backend().to_string();
                assert!(text.contains("q quits") && text.contains("auto for other-core"), "{text}");
                assert!(text.contains(&format!("{} ", std::process::id())), "{text}");
            }
        }
        drop((a, b));
    }
    /// The columns of which any part is on a screen of this width, with the last one's width where it is cut.
    #[test]
    fn no_number_is_cut() {
        let mut widths = COLUMNS.map(|(head, _)| head.len());
        (widths[0], widths[1], widths[16]) = (16, 20, 30);
        let all: usize = widths.iter().map(|width| width + 1).sum();
        for room in 0..all + 5 {
            for column in 0..COLUMNS.len() {
                let shown = fitting(&widths, column, room);
                let taken: usize = shown.iter().map(|(_, width)| width + 1).sum();
                assert!(taken <= room + 1, "{room}: {shown:?}");
                for (at, (i, width)) in shown.iter().enumerate() {
                    let cut = *width < widths[*i];
                    assert!(!cut || !COLUMNS[*i].1 && at + 1 == shown.len(), "{room}: {shown:?}");
                }
            }
        }
        let names = |column, room| {
            let shown = fitting(&widths, column, room);
            shown.iter().map(|(i, _)| COLUMNS[*i].0).collect::<Vec<_>>()
        };
        assert_eq!(names(0, all).len(), COLUMNS.len());
        assert_eq!(names(0, 60), ["type", "process", "peer", "queue", "sent"]);
        assert_eq!(names(5, 60), ["type", "process", "received", "user copies"]);
        assert_eq!(names(16, 68), ["type", "process", "path"]);
        // Rather whole than beside what stays.
        assert_eq!(names(16, 60), ["path"]);
        // Too narrow for what stays.
        assert_eq!(names(4, 30), ["sent", "received", "user copies"]);
        assert_eq!(names(1, 30), ["process", "peer"]);
        assert_eq!(names(4, 3), [""; 0]);
    }

    /// From the left to the right, on a small terminal, every column can be seen whole.
    #[test]
    fn every_column_can_be_reached() {
        let (_a, _b) = Stream::pair().unwrap();
        let now = Look::now(&Which::default()).unwrap().again().unwrap();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let (mut place, mut seen) = (Place::default(), String::new());
        for _ in 0..COLUMNS.len() {
            terminal.draw(|frame| draw(frame, &now, &mut place, Duration::from_secs(1))).unwrap();
            seen += &terminal.backend().to_string();
            place.column += usize::from(place.more);
        }
        assert!(COLUMNS.iter().all(|(head, _)| seen.contains(head)), "{seen}");
    }
}

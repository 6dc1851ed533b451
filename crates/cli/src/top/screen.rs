//! The table on a terminal. Whatever ends it (q, a signal, an error, a panic), the terminal is as it was.

use super::{Between, Look};
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
    let mut state = TableState::default().with_selected(0);
    let mut now = look.again()?;
    loop {
        terminal.draw(|frame| draw(frame, &now, &mut state, interval))?;
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
                    KeyCode::Down | KeyCode::Char('j') => state.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => state.select_previous(),
                    KeyCode::Home => state.select_first(),
                    KeyCode::End => state.select_last(),
                    _ => continue,
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            terminal.draw(|frame| draw(frame, &now, &mut state, interval))?;
        }
        now = look.again()?;
    }
}

fn draw(frame: &mut Frame<'_>, now: &Between, state: &mut TableState, interval: Duration) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let sockets = &now.found.sockets;
    let title = format!("onecopy top  {} sockets, by the second, every {interval:?}", sockets.len());
    frame.render_widget(Paragraph::new(title).style(Modifier::BOLD), head);
    let rows: Vec<_> = sockets.iter().map(|socket| cells(socket, Some(&now.rates))).collect();
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        Constraint::Length(cells.max(COLUMNS[i].0.len()) as u16)
    };
    let text = |i: usize, cell: String| {
        let line = Line::from(cell);
        if COLUMNS[i].1 { line.right_aligned() } else { line }
    };
    let heads = COLUMNS.iter().enumerate().map(|(i, (name, _))| text(i, (*name).to_owned()));
    let header = Row::new(heads).style(Style::from(Modifier::UNDERLINED));
    let widths: Vec<_> = (0..COLUMNS.len()).map(width).collect();
    let lines = rows.into_iter().map(|row| Row::new(row.into_iter().enumerate().map(|(i, c)| text(i, c))));
    let table = Table::new(lines, widths).header(header).row_highlight_style(Modifier::REVERSED);
    frame.render_stateful_widget(table, body, state);
    let skipped = match now.found.skipped.len() {
        0 => String::new(),
        n => format!("   {n} passed over: onecopy ss -v says why"),
    };
    frame.render_widget(Paragraph::new(format!("q quits, arrows move{skipped}")), foot);
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
        a.send(&vec![1; 50_000], onecopy::SendFlags::NOSIGNAL).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        let now = look.again().unwrap();
        let mine = now.found.sockets.iter().filter(|s| s.pid == std::process::id()).count();
        assert!(mine >= 2, "{:?}", now.found);
        // (With room for all that others have on this machine.)
        let tall = 60 + now.found.sockets.len() as u16;
        for (width, height) in [(200, tall), (40, 5), (1, 1), (80, 3)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut state = TableState::default().with_selected(0);
            terminal.draw(|frame| draw(frame, &now, &mut state, Duration::from_secs(1))).unwrap();
            if width == 200 {
                let text = terminal.backend().to_string();
                assert!(text.contains("q quits") && text.contains("auto for other-core"), "{text}");
                assert!(text.contains(&format!("{} ", std::process::id())), "{text}");
            }
        }
        drop((a, b));
    }
}

//! What fails, and when.

use std::collections::HashMap;
use std::ffi::c_int;

/// Plans for functions, by name.
#[derive(Debug, Default)]
pub struct Faults(HashMap<String, Plan>);

#[derive(Debug)]
struct Plan {
    after: u32,
    times: u32,
    code: c_int,
}

impl Faults {
    pub fn plan(&mut self, name: &str, after: u32, times: u32, code: c_int) {
        self.0.insert(name.to_owned(), Plan { after, times, code });
    }

    /// A call of `name`: with what it fails, if it does.
    pub fn met(&mut self, name: &str) -> Result<(), c_int> {
        let Some(plan) = self.0.get_mut(name) else { return Ok(()) };
        if plan.after > 0 {
            plan.after -= 1;
            return Ok(());
        }
        if plan.times == 0 {
            return Ok(());
        }
        plan.times -= 1;
        Err(plan.code)
    }

    /// `after:times:code`.
    pub fn read(&mut self, name: &str, text: &str) -> Option<()> {
        let mut words = text.split(':');
        let (after, times, code) = (words.next()?, words.next()?, words.next()?);
        self.plan(name, after.parse().ok()?, times.parse().ok()?, code.parse().ok()?);
        words.next().is_none().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_fails_as_often_as_it_says_and_no_more() {
        let mut faults = Faults::default();
        faults.read("f", "1:2:700").unwrap();
        assert_eq!([(); 5].map(|()| faults.met("f")), [Ok(()), Err(700), Err(700), Ok(()), Ok(())]);
        assert_eq!(faults.met("g"), Ok(()));
        assert!(faults.read("f", "1:2").is_none() && faults.read("f", "1:2:3:4").is_none());
        assert!(faults.read("f", "a:2:3").is_none());
    }
}

//! One crate made of what rustdoc says of several, so that what is re-exported is listed where a user finds it.
//!
//! rustdoc writes a file a crate. An item of another crate is there only by its path, so of `pub use onecopy_unix::*`
//! nothing is known but that. Here the items of all crates get ids of their own, and where a crate names an item of
//! another one it gets the id that the item has there. All is as if the crates were modules of the first one.
//!
//! What is `#[doc(hidden)]` is no part of that, but what a hidden module has may be re-exported by one that is not. So rustdoc
//! is asked for all, and here modules, types and traits lose what is hidden in them.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// The ids of crate number n begin at n times this.
const STRIDE: u64 = 10_000_000;

/// Where ids stand that are numbers. (Those that are keys stand in `index` and in `paths`.)
const IDS: [&str; 8] = ["id", "root", "items", "impls", "implementations", "fields", "variants", "tuple"];

/// Where lists of ids stand, or what has such lists.
const LISTS: [&str; 13] = [
    "module", "struct", "union", "enum", "trait", "impl", "variant", "kind", "plain", "items", "fields",
    "variants", "impls",
];

/// An item's path and kind, by which crates name each other's items.
type Named<'a> = (Vec<&'a str>, &'a str);

/// What one crate says of a path: whose it is, and the item.
fn named(summary: &Value) -> Option<(Named<'_>, bool)> {
    let path: Vec<_> = summary.get("path")?.as_array()?.iter().filter_map(Value::as_str).collect();
    let local = summary.get("crate_id")?.as_u64()? == 0;
    Some(((path, summary.get("kind")?.as_str()?), local))
}

fn map<'a>(value: &'a Value, field: &str) -> Result<&'a Map<String, Value>> {
    value.get(field).and_then(Value::as_object).with_context(|| format!("rustdoc's JSON has no {field}"))
}

fn number(text: &str) -> Result<u64> {
    let id = text.parse().with_context(|| format!("rustdoc's JSON has an id {text:?}"))?;
    if id >= STRIDE {
        bail!("rustdoc's JSON has an id of {id}; raise STRIDE");
    }
    Ok(id)
}

/// The items that the crates have themselves, by what the others call them.
fn own(crates: &[Value]) -> Result<HashMap<Named<'_>, u64>> {
    let mut own = HashMap::new();
    for (nth, of) in (0..).zip(crates) {
        for (id, summary) in map(of, "paths")? {
            if let Some((named, true)) = named(summary) {
                own.insert(named, nth * STRIDE + number(id)?);
            }
        }
    }
    Ok(own)
}

/// Whether an item says that it is hidden.
fn is_hidden(item: &Value) -> bool {
    let attributes = item.get("attrs").and_then(Value::as_array).into_iter().flatten();
    attributes.filter_map(|one| one.get("other")?.as_str()).any(|one| one == "#[doc(hidden)]")
}

/// Removes the ids of hidden items from the lists of what is in a module, a type or a trait.
fn strip(value: &mut Value, hidden: &HashSet<u64>) {
    match value {
        Value::Array(all) => {
            all.retain(|one| one.as_u64().is_none_or(|id| !hidden.contains(&id)));
            all.iter_mut().for_each(|one| strip(one, hidden));
        }
        Value::Object(fields) => {
            let lists = fields.iter_mut().filter(|(name, _)| LISTS.contains(&name.as_str()));
            lists.for_each(|(_, one)| strip(one, hidden));
        }
        _ => {}
    }
}

/// Gives all ids below `value` their new number.
fn renumber(value: &mut Value, under_id: bool, new: &impl Fn(u64) -> u64) {
    match value {
        Value::Number(id) if under_id => {
            if let Some(id) = id.as_u64() {
                *value = new(id).into();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| renumber(one, under_id, new)),
        Value::Object(fields) => {
            // What documentation links to is of no use here, and is a table of ids.
            if let Some(links) = fields.get_mut("links") {
                *links = Map::new().into();
            }
            fields.iter_mut().for_each(|(name, one)| renumber(one, IDS.contains(&name.as_str()), new));
        }
        _ => {}
    }
}

/// Makes one crate of many. The first is the one whose items a user reaches.
pub fn crates(crates: &[Value]) -> Result<Value> {
    let own = own(crates)?;
    let mut merged = crates.first().context("no crate to list")?.clone();
    let (mut index, mut paths) = (Map::new(), Map::new());
    for (nth, of) in (0..).zip(crates) {
        let elsewhere: HashMap<u64, u64> = map(of, "paths")?
            .iter()
            .filter_map(|(id, summary)| Some((id.parse().ok()?, *own.get(&named(summary)?.0)?)))
            .collect();
        let new = |id: u64| elsewhere.get(&id).copied().unwrap_or(nth * STRIDE + id);
        for (id, item) in map(of, "index")? {
            let mut item = item.clone();
            renumber(&mut item, false, &new);
            // An item of another crate may stand here as well, as traits do, with less than there.
            let local = item.get("crate_id").and_then(Value::as_u64) == Some(0);
            let id = new(number(id)?).to_string();
            if local || !index.contains_key(&id) {
                index.insert(id, item);
            }
        }
        for (id, summary) in map(of, "paths")? {
            let ours = named(summary).is_some_and(|(_, local)| local);
            let id = new(number(id)?).to_string();
            if ours || !paths.contains_key(&id) {
                paths.insert(id, summary.clone());
            }
        }
        if nth == 0 {
            renumber(&mut merged["root"], true, &new);
        }
    }
    let id = |item: &Value| item.get("id").and_then(Value::as_u64);
    let hidden: HashSet<_> = index.values().filter(|item| is_hidden(item)).filter_map(id).collect();
    for item in index.values_mut() {
        item.get_mut("inner").into_iter().for_each(|inner| strip(inner, &hidden));
    }
    merged["index"] = index.into();
    merged["paths"] = paths.into();
    Ok(merged)
}

/// The methods in implementations of traits: that the trait is implemented says it all. (Not so for associated types.)
pub fn told_by_traits(merged: &Value) -> HashSet<u64> {
    let index = merged.get("index").and_then(Value::as_object).into_iter().flatten();
    let inner = |item: &'_ Value| item.pointer("/inner/impl").cloned();
    let of_traits = index.clone().filter_map(|(_, item)| inner(item)).filter(|one| !one["trait"].is_null());
    let items = of_traits.flat_map(|one| one["items"].as_array().cloned().unwrap_or_default());
    let items: HashSet<u64> = items.filter_map(|id| id.as_u64()).collect();
    let is_function = |item: &Value| item.pointer("/inner/function").is_some();
    let functions = index.filter(|(_, item)| is_function(item)).filter_map(|(id, _)| id.parse().ok());
    functions.filter(|id| items.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A crate of one item, and what it says of another crate's.
    fn one(name: &str, paths: Value, index: Value) -> Value {
        let root = json!({"id": 0, "crate_id": 0, "name": name, "inner": {"module": {"items": [1]}}});
        let mut index = index;
        index["0"] = root;
        json!({"root": 0, "index": index, "paths": paths})
    }

    #[test]
    fn what_is_used_from_another_crate_gets_the_id_that_it_has_there() {
        let thing = |of| json!({"crate_id": of, "path": ["back", "hidden", "Thing"], "kind": "struct"});
        let front = one(
            "front",
            json!({"7": thing(3)}),
            json!({"1": {"id": 1, "crate_id": 0, "inner": {"use": {"id": 7, "is_glob": false}}}}),
        );
        let back = one(
            "back",
            json!({"1": thing(0)}),
            json!({"1": {"id": 1, "crate_id": 0, "links": {"x": 1}, "inner": {"struct": {"impls": [2]}}}}),
        );
        let merged = crates(&[front, back]).unwrap();
        let there = STRIDE + 1;
        assert_eq!(merged["index"]["1"]["inner"]["use"]["id"], json!(there));
        assert_eq!(merged["index"][there.to_string()]["inner"]["struct"]["impls"], json!([STRIDE + 2]));
        assert_eq!(merged["index"][STRIDE.to_string()]["name"], "back");
        assert_eq!(merged["root"], 0);
    }

    #[test]
    fn what_is_hidden_is_in_no_list_but_may_be_used() {
        let hidden = json!([{"other": "#[doc(hidden)]"}]);
        let index = json!({
            "1": {"id": 1, "crate_id": 0, "attrs": hidden, "inner": {"module": {"items": [2]}}},
            "2": {"id": 2, "crate_id": 0, "attrs": [], "inner": {"impl": {"items": [3, 4]}}},
            "3": {"id": 3, "crate_id": 0, "attrs": hidden, "inner": {"function": {}}},
        });
        let merged = crates(&[one("front", json!({}), index)]).unwrap();
        assert_eq!(merged["index"]["0"]["inner"]["module"]["items"], json!([]));
        assert_eq!(merged["index"]["1"]["inner"]["module"]["items"], json!([2]));
        assert_eq!(merged["index"]["2"]["inner"]["impl"]["items"], json!([4]));
    }
}

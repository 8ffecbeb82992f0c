//! The source as the map sees it: modules, what each names, and which of them import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// All modules below `src`, by their path: `plan::firewall`; the root is empty.
pub struct Source {
    pub files: BTreeMap<String, File>,
    /// Which modules each module's code names.
    pub imports: BTreeMap<String, BTreeSet<String>>,
}

pub struct File {
    /// Its first line says so.
    pub pure: bool,
    /// Of code.
    pub lines: usize,
    pub tokens: Vec<String>,
    /// A name in scope and its path.
    scope: BTreeMap<String, Vec<String>>,
    /// Names of `scope` that the module offers to others.
    exports: BTreeSet<String>,
}

impl Source {
    pub fn read() -> Source {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = BTreeMap::new();
        collect(&root, "", &mut files);
        let mut source = Source { files, imports: BTreeMap::new() };
        for (name, file) in &source.files {
            let mut imports: BTreeSet<String> = file
                .paths()
                .iter()
                .filter_map(|path| path.strip_prefix("crate::"))
                // A module's name alone is the field or the variable of that name.
                .filter(|path| !source.files.contains_key(*path))
                .map(|path| source.module_of(path))
                .collect();
            imports.remove(name);
            source.imports.insert(name.clone(), imports);
        }
        source
    }

    /// The module in which the item at `path` (without `crate`) is written.
    pub fn module_of(&self, path: &str) -> String {
        let (mut module, mut rest) = (String::new(), path.split("::").peekable());
        while let Some(name) = rest.peek() {
            let child =
                if module.is_empty() { (*name).to_owned() } else { format!("{module}::{name}") };
            if !self.files.contains_key(&child) {
                break;
            }
            module = child;
            rest.next();
        }
        let file = self.files.get(&module);
        match (rest.next(), file) {
            (Some(name), Some(file)) if file.exports.contains(name) => {
                match &*file.scope[name].join("::") {
                    target if target.starts_with("crate::") => {
                        self.module_of(&target["crate::".len()..])
                    }
                    _ => module,
                }
            }
            _ => module,
        }
    }

    /// The folders from top to bottom, as the table in `src/lib.rs` has them.
    pub fn order(&self) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
        let text = std::fs::read_to_string(path).expect("src/lib.rs");
        let rows = text.lines().filter_map(|line| line.strip_prefix("//! | [`"));
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
    }

    /// Each set of modules that reach each other.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.imports.keys().map(|name| (name.as_str(), self.reached_from(name))).collect();
        let mut circles = BTreeSet::new();
        for (name, others) in &reached {
            let circle: Vec<&str> =
                others.iter().copied().filter(|other| reached[other].contains(name)).collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reached_from(&self, start: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = vec![start];
        while let Some(name) = open.pop() {
            for next in self.imports.get(name).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    }
}

fn collect(folder: &Path, module: &str, files: &mut BTreeMap<String, File>) {
    for entry in std::fs::read_dir(folder).expect("a folder of src") {
        let path = entry.expect("an entry of src").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let child = if module.is_empty() { stem.clone() } else { format!("{module}::{stem}") };
        if ["tests", "properties"].contains(&stem.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(&path, &child, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = match stem.as_str() {
                "lib" => String::new(),
                "mod" => module.to_owned(),
                _ => child,
            };
            let text = std::fs::read_to_string(&path).expect("a source file");
            files.insert(name.clone(), File::parse(&name, &text));
        }
    }
}

impl File {
    fn parse(module: &str, text: &str) -> File {
        let (tokens, lines) = without_tests(tokens(text));
        let mut file = File {
            pure: text.starts_with("//! Pure."),
            lines,
            tokens: Vec::new(),
            scope: BTreeMap::new(),
            exports: BTreeSet::new(),
        };
        let mut own = vec!["crate".to_owned()];
        own.extend(module.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
        let tokens = from_root(tokens, &own);
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "mod" if tokens.get(at + 2).is_some_and(|token| token == ";") => {
                    let path = own.iter().chain([&tokens[at + 1]]).cloned().collect();
                    file.scope.insert(tokens[at + 1].clone(), path);
                    at += 3;
                }
                "use" => {
                    let public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                    let before: BTreeSet<String> = file.scope.keys().cloned().collect();
                    at = file.take_use(&tokens, at + 1, &[]) + 1;
                    if public {
                        let new = file.scope.keys().filter(|name| !before.contains(*name));
                        file.exports.extend(new.cloned().collect::<Vec<_>>());
                    }
                }
                _ => {
                    file.tokens.push(tokens[at].clone());
                    at += 1;
                }
            }
        }
        let scope = file.scope.clone();
        for path in file.scope.values_mut() {
            if let Some(local) = scope.get(&path[0]).filter(|local| *local != path) {
                path.splice(0..1, local.iter().cloned());
            }
        }
        file
    }

    /// Takes one tree of a `use` from `at` on; returns where it ends.
    fn take_use(&mut self, tokens: &[String], mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match tokens[at].as_str() {
                "{" => loop {
                    at = self.take_use(tokens, at + 1, &path);
                    match tokens[at].as_str() {
                        "}" => return at + 1,
                        _ if tokens[at + 1] == "}" => return at + 2,
                        _ => {}
                    }
                },
                "::" => at += 1,
                "as" => {
                    self.scope.insert(tokens[at + 1].clone(), path);
                    return at + 2;
                }
                ";" | "," | "}" => {
                    if let Some(name) = path.last().cloned() {
                        if name == "self" {
                            path.pop();
                        }
                        let name = path.last().cloned().unwrap_or(name);
                        // Each `*` is of another module.
                        let name = if name == "*" { path.join("::") } else { name };
                        self.scope.insert(name, path);
                    }
                    return at;
                }
                part => {
                    path.push(part.to_owned());
                    at += 1;
                }
            }
        }
    }

    /// The names of the types that it defines, but for those inside functions and implementations.
    pub fn types(&self) -> BTreeSet<&str> {
        let (mut depth, mut types) = (0, BTreeSet::new());
        for pair in self.tokens.windows(2) {
            depth += i32::from(pair[0] == "{") - i32::from(pair[0] == "}");
            let defines = ["struct", "enum", "trait", "type"].contains(&pair[0].as_str());
            if depth == 0 && defines {
                types.insert(pair[1].as_str());
            }
        }
        types
    }

    /// Every path that the code names: those of its imports and those written out, from the root.
    ///
    /// What is only offered to others, or only declared, is not named.
    pub fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let first = &self.tokens[at];
            let mut end = at + 1;
            let mut path = vec![first.clone()];
            while end + 1 < self.tokens.len()
                && self.tokens[end] == "::"
                && is_name(&self.tokens[end + 1])
            {
                path.push(self.tokens[end + 1].clone());
                end += 2;
            }
            let member = at > 0 && self.tokens[at - 1] == ".";
            if is_name(first) && !member {
                if let Some(known) = self.scope.get(first) {
                    path.splice(0..1, known.iter().cloned());
                }
                if self.tokens.get(end).is_some_and(|token| token == "(") {
                    path.push("()".to_owned());
                }
                paths.insert(path.join("::"));
            }
            at = end;
        }
        // A trait's name appears only in its import, and so does what `*` stands for.
        let imported = self.scope.iter().filter(|(name, _)| !self.exports.contains(*name));
        for path in imported.map(|(_, path)| path) {
            let last = path.last().map_or("", String::as_str);
            if last.starts_with(char::is_uppercase) || last == "_" || last == "*" {
                paths.insert(path.join("::"));
            }
        }
        paths
    }
}

/// `tokens` with each path that begins with `self` or `super` from the root on; `own`: the path of their module.
fn from_root(tokens: Vec<String>, own: &[String]) -> Vec<String> {
    let mut inner: Vec<(String, usize)> = Vec::new();
    let (mut rooted, mut depth, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        let is = |offset: usize, token: &str| tokens.get(at + offset).is_some_and(|it| it == token);
        if is(0, "mod") && is(2, "{") {
            inner.push((tokens[at + 1].clone(), depth));
        }
        depth += usize::from(is(0, "{"));
        depth -= usize::from(is(0, "}"));
        if is(0, "}") && inner.last().is_some_and(|(_, outside)| *outside == depth) {
            inner.pop();
        }
        let goes_on = at > 0 && tokens[at - 1] == "::";
        if !is(1, "::") || goes_on || !(is(0, "self") || is(0, "super")) {
            rooted.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut path: Vec<&String> = own.iter().chain(inner.iter().map(|(name, _)| name)).collect();
        while let [first, colons, ..] = &tokens[at..]
            && colons == "::"
            && (first == "self" || first == "super")
        {
            if first == "super" {
                path.pop();
            }
            at += 2;
        }
        for part in path {
            rooted.extend([part.clone(), "::".to_owned()]);
        }
    }
    rooted
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::` and single characters, each with its line; no comments, no text of strings.
fn tokens(text: &str) -> Vec<(String, usize)> {
    let mut tokens = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let start = (at, line);
        match rest {
            ['\n', ..] => (at, line) = (at + 1, line + 1),
            [space, ..] if space.is_whitespace() => at += 1,
            ['/', '/', ..] => at += length_until(rest, |chars| chars.starts_with(&['\n'])),
            ['/', '*', ..] => at += length_until(rest, |chars| chars.starts_with(&['*', '/'])) + 2,
            ['r', '"', ..] | ['r', '#', '"' | '#', ..] => {
                let hashes = rest[1..].iter().take_while(|char| **char == '#').count();
                let mut end = vec!['"'];
                end.extend(vec!['#'; hashes]);
                let open = hashes + 2;
                at +=
                    open + length_until(&rest[open..], |chars| chars.starts_with(&end)) + end.len();
            }
            ['"', ..] => {
                at += 1;
                while chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            ['\'', '\\', ..] => {
                at += 3 + length_until(&rest[3..], |chars| chars.starts_with(&['\'']))
            }
            ['\'', _, '\'', ..] => at += 3,
            [':', ':', ..] => at += 2,
            [first, ..] if first.is_alphanumeric() || *first == '_' => {
                at += length_until(rest, |chars| !(chars[0].is_alphanumeric() || chars[0] == '_'));
            }
            _ => at += 1,
        }
        let token: String = chars[start.0..at.min(chars.len())].iter().collect();
        if token != "\n" {
            line += token.matches('\n').count();
        }
        if !token.trim().is_empty() && !token.starts_with("//") && !token.starts_with("/*") {
            // Each line of a long string is code.
            for further in start.1 + 1..=line {
                tokens.push(("\"".to_owned(), further));
            }
            tokens.push((token, start.1));
        }
    }
    tokens
}

fn length_until(chars: &[char], end: impl Fn(&[char]) -> bool) -> usize {
    (0..chars.len()).find(|at| end(&chars[*at..])).unwrap_or(chars.len())
}

/// The tokens outside `#[cfg(test)]`, and their number of lines.
fn without_tests(tokens: Vec<(String, usize)>) -> (Vec<String>, usize) {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut lines = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = TEST
            .iter()
            .enumerate()
            .all(|(offset, part)| tokens.get(at + offset).is_some_and(|(token, _)| token == part));
        if !is_test {
            kept.push(tokens[at].0.clone());
            lines.insert(tokens[at].1);
            at += 1;
            continue;
        }
        let mut depth = 0;
        for (token, _) in &tokens[at + TEST.len()..] {
            at += 1;
            depth += i32::from(token == "{") - i32::from(token == "}");
            if depth == 0 && (token == ";" || token == "}") {
                break;
            }
        }
        at += TEST.len();
    }
    (kept, lines.len())
}

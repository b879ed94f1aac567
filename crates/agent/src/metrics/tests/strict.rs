//! Parses an exposition by the exact rules of OpenMetrics 1.0, or of the text format 0.0.4.

use std::collections::BTreeSet;

use super::super::Exposition;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) series: String,
    name: String,
    labels: Vec<(String, String)>,
    pub(super) value: f64,
}

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    unit: Option<String>,
    samples: Vec<Sample>,
}

pub(super) fn parse(text: &str, form: Exposition) -> Result<Vec<Sample>, String> {
    let body = match form {
        Exposition::OpenMetrics => text.strip_suffix("# EOF\n").ok_or("does not end with # EOF")?,
        Exposition::Text => text,
    };
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let mut families: Vec<Family> = Vec::new();
    for line in body.lines() {
        read(&mut families, line, form).map_err(|wrong| format!("{line}: {wrong}"))?;
    }
    let (mut names, mut series) = (BTreeSet::new(), BTreeSet::new());
    for family in &families {
        family.check(form).map_err(|wrong| format!("{}: {wrong}", family.name))?;
        if let Some(clash) = family.names(form).into_iter().find(|name| !names.insert(name.clone())) {
            return Err(format!("{clash} belongs to two families"));
        }
        if let Some(twice) = family.samples.iter().find(|sample| !series.insert(sample.identity())) {
            return Err(format!("{} is there twice", twice.series));
        }
    }
    Ok(families.into_iter().flat_map(|family| family.samples).collect())
}

/// A family has its lines in this order: HELP, TYPE, UNIT (only in OpenMetrics, and optional), and then the samples.
fn read(families: &mut Vec<Family>, line: &str, form: Exposition) -> Result<(), String> {
    let Some(words) = line.strip_prefix("# ") else {
        let family = families.last_mut().filter(|family| family.kind.is_some()).ok_or("a sample without a TYPE")?;
        family.samples.push(sample(line)?);
        return Ok(());
    };
    let mut words = words.splitn(3, ' ');
    let (Some(keyword), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
        return Err("neither HELP nor TYPE nor UNIT".to_owned());
    };
    if keyword == "HELP" {
        let escaped = unescaped(rest, "\\n\"")?;
        families.push(Family { name: name.to_owned(), ..Family::default() });
        return if is_name(name) && !escaped.is_empty() { Ok(()) } else { Err("no name, or no words".to_owned()) };
    }
    let family = families.last_mut().filter(|family| family.name == name && family.samples.is_empty());
    let family = family.ok_or("not of the family that was opened")?;
    match (keyword, form) {
        ("TYPE", _) if family.kind.is_none() && family.unit.is_none() => family.kind = Some(rest.to_owned()),
        ("UNIT", Exposition::OpenMetrics) if family.unit.is_none() => family.unit = Some(rest.to_owned()),
        _ => return Err("out of order".to_owned()),
    }
    Ok(())
}

impl Family {
    fn suffixes(&self, form: Exposition) -> &'static [&'static str] {
        match (self.kind.as_deref(), form) {
            (Some("counter"), Exposition::OpenMetrics) => &["_total"],
            (Some("histogram"), _) => &["_bucket", "_sum", "_count"],
            _ => &[""],
        }
    }

    fn names(&self, form: Exposition) -> BTreeSet<String> {
        let with = |suffix: &&str| format!("{}{suffix}", self.name);
        self.suffixes(form).iter().chain(&[""]).map(with).collect()
    }

    fn check(&self, form: Exposition) -> Result<(), String> {
        let kind = self.kind.as_deref().ok_or("no TYPE")?;
        if form == Exposition::OpenMetrics {
            let unit = ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(&format!("_{unit}")));
            if self.unit.as_deref() != unit {
                return Err(format!("the unit is {:?}, by its name it is {unit:?}", self.unit));
            }
        }
        let ends = self.name.ends_with("_total");
        match (kind, form) {
            ("counter", Exposition::OpenMetrics) if ends => return Err("a family named _total".to_owned()),
            ("counter", Exposition::Text) if !ends => return Err("a counter not named _total".to_owned()),
            ("counter" | "gauge" | "histogram", _) => {}
            _ => return Err(format!("a type of its own: {kind}")),
        }
        for sample in &self.samples {
            let suffix = sample.name.strip_prefix(&self.name).ok_or(format!("{} is of another", sample.name))?;
            if !self.suffixes(form).contains(&suffix) {
                return Err(format!("{} is no sample of a {kind}", sample.name));
            }
            if kind != "gauge" && (sample.value < 0.0 || !sample.value.is_finite()) {
                return Err(format!("{} cannot be {}", sample.series, sample.value));
            }
        }
        if kind == "histogram" { self.check_histogram() } else { Ok(()) }
    }

    /// Checks a histogram without other labels. The bounds must rise, and the counts must not fall. The last bucket
    /// must have the full count.
    fn check_histogram(&self) -> Result<(), String> {
        let of = |suffix: &str| self.samples.iter().filter(move |it| it.name.ends_with(suffix)).collect::<Vec<_>>();
        let (buckets, sums, counts) = (of("_bucket"), of("_sum"), of("_count"));
        let ([_], [count]) = (&sums[..], &counts[..]) else { return Err("not one sum and one count".to_owned()) };
        let mut bounds = Vec::new();
        for bucket in &buckets {
            let [(label, bound)] = &bucket.labels[..] else { return Err("a bucket without le alone".to_owned()) };
            let bound = number(bound).ok_or("le is no number")?;
            if label != "le" {
                return Err("a bucket without le".to_owned());
            }
            bounds.push((bound, bucket.value));
        }
        let rising = bounds.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let whole = bounds.last() == Some(&(f64::INFINITY, count.value));
        if rising && whole { Ok(()) } else { Err("its buckets do not rise to +Inf and the count".to_owned()) }
    }
}

impl Sample {
    /// Two samples with the same labels in another order are equal.
    fn identity(&self) -> (String, BTreeSet<(String, String)>) {
        (self.name.clone(), self.labels.iter().cloned().collect())
    }
}

/// Parses `name value` or `name{label="value",...} value`. A timestamp after the value is an error.
fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, value) = rest.split_once("=\"").ok_or("no label")?;
            let close = closing_quote(value).ok_or("a value without an end")?;
            labels.push((label.to_owned(), unescaped(&value[..close], "\\n\"")?));
            match value[close + 1..].split_at_checked(1) {
                Some((",", more)) => rest = more,
                Some(("}", more)) => {
                    rest = more;
                    break;
                }
                _ => return Err("neither another label nor their end".to_owned()),
            }
        }
    }
    let names: BTreeSet<_> = labels.iter().map(|(label, _)| label).collect();
    let is_label = |label: &&String| is_name(label) && !label.contains(':') && !label.starts_with("__");
    if !is_name(name) || !names.iter().copied().all(|label| is_label(&label)) || names.len() != labels.len() {
        return Err("names that are none, or one twice".to_owned());
    }
    if labels.iter().any(|(_, value)| value.chars().any(char::is_control)) {
        return Err("a control character".to_owned());
    }
    let value = rest.strip_prefix(' ').and_then(number).ok_or("not one number after one blank")?;
    Ok(Sample { series: line[..line.len() - rest.len()].to_owned(), name: name.to_owned(), labels, value })
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, letter)| {
        let closes = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        closes.then_some(at)
    })
}

fn unescaped(text: &str, escapes: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next().filter(|escape| escapes.contains(*escape)) {
                Some('n') => plain.push('\n'),
                Some(escape) => plain.push(escape),
                None => return Err("an unknown escape".to_owned()),
            },
            letter => plain.push(letter),
        }
    }
    Ok(plain)
}

/// Parses a number. Rust's own parser would also accept `infinity` and `nan`.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    (plain || matches!(text, "+Inf" | "-Inf" | "NaN")).then(|| text.parse().ok()).flatten()
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    text.bytes().next().is_some_and(letter) && text.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

#[test]
fn what_is_well_formed_is_read() {
    let text = "# HELP a_seconds How long.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n\
                a_seconds{b=\"\\\"x\\\\\"} 1.5\n# EOF\n";
    let samples = parse(text, Exposition::OpenMetrics).expect("well-formed");
    assert_eq!((samples[0].series.as_str(), samples[0].value), ("a_seconds{b=\"\\\"x\\\\\"}", 1.5));
    assert_eq!(samples[0].labels, [("b".to_owned(), "\"x\\".to_owned())]);
}

#[test]
fn every_offence_is_noticed() {
    let gauge = |samples: &str| format!("# HELP a A.\n# TYPE a gauge\n{samples}# EOF\n");
    let histogram = |samples: &str| format!("# HELP h H.\n# TYPE h histogram\n{samples}# EOF\n");
    let counter = |samples: &str| format!("# HELP c C.\n# TYPE c counter\n{samples}# EOF\n");
    for (offence, text) in [
        ("no end", "# HELP a A.\n# TYPE a gauge\na 1\n".to_owned()),
        ("an early end", format!("{}{}", gauge("a 1\n"), gauge("a 1\n"))),
        ("no type", "# HELP a A.\na 1\n# EOF\n".to_owned()),
        ("no help", "# TYPE a gauge\na 1\n# EOF\n".to_owned()),
        ("two types", "# HELP a A.\n# TYPE a gauge\n# TYPE a gauge\na 1\n# EOF\n".to_owned()),
        ("no unit", "# HELP a_bytes A.\n# TYPE a_bytes gauge\na_bytes 1\n# EOF\n".to_owned()),
        ("a unit that is not in the name", "# HELP a A.\n# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n".to_owned()),
        ("an empty line", gauge("a 1\n\n")),
        ("a comment", gauge("# well\na 1\n")),
        ("the same series", gauge("a{b=\"1\",c=\"2\"} 1\na{c=\"2\",b=\"1\"} 1\n")),
        ("the same label", gauge("a{b=\"1\",b=\"2\"} 1\n")),
        ("another family's sample", gauge("b 1\n")),
        ("a time", gauge("a 1 1700000000\n")),
        ("two blanks", gauge("a  1\n")),
        ("no number", gauge("a infinity\n")),
        ("empty labels", gauge("a{} 1\n")),
        ("a comma at the end", gauge("a{b=\"1\",} 1\n")),
        ("an unknown escape", gauge("a{b=\"\\t\"} 1\n")),
        ("an open quote", gauge("a{b=\"\\\"} 1\n")),
        ("a label with a dash", gauge("a{b-c=\"1\"} 1\n")),
        ("a counter without _total", counter("c 1\n")),
        ("a counter below zero", counter("c_total -1\n")),
        ("a clash of names", format!("# HELP c_total C.\n# TYPE c_total gauge\nc_total 1\n{}", counter("c_total 1\n"))),
        ("no +Inf", histogram("h_sum 1\nh_count 1\nh_bucket{le=\"1.0\"} 1\n")),
        ("a falling count", histogram("h_sum 1\nh_count 1\nh_bucket{le=\"1.0\"} 2\nh_bucket{le=\"+Inf\"} 1\n")),
        ("another count", histogram("h_sum 1\nh_count 2\nh_bucket{le=\"+Inf\"} 1\n")),
        ("no sum", histogram("h_count 1\nh_bucket{le=\"+Inf\"} 1\n")),
    ] {
        assert!(parse(&text, Exposition::OpenMetrics).is_err(), "{offence}: {text}");
    }
}

//! The line of a template that writes a field. Where another one may write it, or an action whose text is not known to be harmless, there
//! is none: a line that is not the right one is worse than none.

use super::masked::{Action, MASK, masked};
use portreeve_facts::Span;

/// Keys below which charts write what their users give, and in none of which the field of a port is.
const HARMLESS: [&str; 17] = [
    "affinity",
    "annotations",
    "externalIPs",
    "imagePullSecrets",
    "labels",
    "livenessProbe",
    "loadBalancerSourceRanges",
    "matchLabels",
    "nodeSelector",
    "podSecurityContext",
    "readinessProbe",
    "resources",
    "securityContext",
    "selector",
    "startupProbe",
    "tolerations",
    "topologySpreadConstraints",
];
/// Keys whose value charts have a helper for, which writes one word.
const NAMES: [&str; 8] = ["app", "chart", "component", "image", "name", "namespace", "release", "serviceAccountName"];
/// Keys whose values have fields of ports in them.
const OF_PORTS: [&str; 6] = ["containers", "initContainers", "items", "ports", "spec", "template"];

/// What of a template is compared with fields.
#[derive(Debug)]
pub(super) struct TemplateText {
    /// Its lines without comments and texts of several lines, which have no keys.
    lines: Vec<String>,
    /// Whether an action may write fields of ports.
    is_open: bool,
}

/// A line without its comment.
struct Line<'a> {
    text: &'a str,
    /// How far its key is, behind the hyphens of items, and the key.
    key: Option<(usize, &'a str)>,
    /// Whether it is a comment and nothing else.
    is_comment: bool,
    /// Whether it is an item of a list.
    is_item: bool,
    /// How far the key is to which it belongs as a part of a text of several lines.
    text_of: Option<usize>,
}

/// A place where the key of the field stands.
struct Occurrence {
    line: usize,
    /// Where the key begins, in bytes of the line.
    key: usize,
    /// Where its value does.
    value: usize,
}

impl TemplateText {
    pub(super) fn new(template: &str) -> Self {
        let (text, actions) = masked(template);
        let lines = lines(&text);
        // What a tab stands for depends on where it is.
        let mut is_open = text.contains('\t');
        let mut actions = actions.into_iter().peekable();
        // The keys above, each further than the one before.
        let mut above: Vec<(usize, &str)> = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            while let Some(action) = actions.next_if(|action| action.line == index) {
                is_open |= !is_harmless(line, action, &above);
            }
            if let Some((at, key)) = line.key {
                above.truncate(above.partition_point(|(further, _)| *further < at));
                above.push((at, key));
            }
        }
        let text = |line: &Line<'_>| if line.text_of.is_some() { String::new() } else { line.text.to_owned() };
        Self { lines: lines.iter().map(text).collect(), is_open }
    }

    /// The one line that can have become the field at `path`, whose value is `number` and was rendered at `column`.
    pub(super) fn line_of(&self, path: &str, number: Option<u16>, column: u64) -> Option<Span> {
        let keys: Vec<&str> = path.split('.').map(|part| part.split('[').next().unwrap_or_default()).collect();
        let key = keys.last().filter(|key| !self.is_open && !key.is_empty())?;
        // The value of an item of a list need not stand beside the key of the list.
        let is_item = path.ends_with(']');
        let found = self.lines.iter().enumerate().flat_map(|(index, line)| occurrences(index, line, key));
        let mut found = found.filter(|it| is_item || may_be(&self.lines[it.line][it.value..], number));
        let Occurrence { line, key, value } = found.next().filter(|_| found.next().is_none())?;
        let text = self.lines[line].as_str();
        let before = &text[..value];
        if before.contains(MASK) || !(is_item || before.chars().count() as u64 + 1 == column) {
            return None;
        }
        let column = text[..key].chars().count() as u64 + 1;
        Some(Span { line: line as u64 + 1, column, width: text[key..].chars().count() as u64 })
    }
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    // How far the line is indented to which a text of several lines belongs.
    let mut text_of = None;
    for whole in text.split('\n') {
        let text = without_comment(whole).trim_end();
        let indent = text.len() - text.trim_start_matches(' ').len();
        let inside = text_of.filter(|of| text.is_empty() || indent > *of);
        let mut at = indent;
        while text[at..].starts_with("- ") {
            at += text[at..].len() - text[at + 1..].trim_start_matches(' ').len();
        }
        let rest = &text[at..];
        let end = rest.find(": ").or_else(|| rest.ends_with(':').then(|| rest.len() - 1));
        let key = end.map(|end| (at, rest[..end].trim_matches(['"', '\'', ' '])));
        if inside.is_none() {
            let value = end.map_or("", |end| rest[end + 1..].trim_start_matches(' '));
            let style = value.trim_end_matches(|it: char| "+-".contains(it) || it.is_ascii_digit());
            text_of = ["|", ">"].contains(&style).then_some(at);
        }
        let is_comment = text.is_empty() && !whole.trim().is_empty();
        lines.push(Line { text, key, is_comment, is_item: at > indent, text_of: inside });
    }
    lines
}

/// What stands before a comment. In a line with a quotation mark none is looked for: it may be quoted.
fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with('#') {
        return "";
    }
    line.find(" #").filter(|at| !line[..*at].contains(['"', '\''])).map_or(line, |at| &line[..at])
}

/// Whether what an action writes is known to be no field of a port, nor anything above one.
fn is_harmless(line: &Line<'_>, Action { indent, writes_fields, .. }: Action, above: &[(usize, &str)]) -> bool {
    if let Some(of) = line.text_of {
        return indent.is_none_or(|it| it > of);
    }
    let is_further = |at: usize| indent.is_some_and(|it| it > at);
    match line.key {
        Some((_, key)) if key.contains(MASK) => false,
        Some((_, key)) if !writes_fields => !OF_PORTS.contains(&key),
        Some((at, key)) => NAMES.contains(&key) || key.contains('/') || HARMLESS.contains(&key) && is_further(at),
        // An item that is one word, or a comment of one line.
        None if !writes_fields => line.is_item || line.is_comment,
        None => {
            let is_alone = line.text.trim_matches([' ', MASK]).is_empty() && !line.is_comment;
            let nearest = above.iter().rev().find(|(at, _)| is_further(*at));
            is_alone && nearest.is_some_and(|(_, key)| HARMLESS.contains(key))
        }
    }
}

/// Where a key stands in a line, also in braces.
fn occurrences(line: usize, text: &str, key: &str) -> Vec<Occurrence> {
    let found = text.match_indices(key).filter_map(|(at, _)| {
        let is_begin = text[..at].chars().next_back().is_none_or(|it| " {[,\"'".contains(it) || it == MASK);
        let rest = text[at + key.len()..].trim_start_matches(['"', '\'']).trim_start();
        let value = rest.strip_prefix(':')?;
        is_begin.then(|| Occurrence { line, key: at, value: text.len() - value.trim_start_matches(' ').len() })
    });
    found.collect()
}

/// Whether a value can have become this number.
fn may_be(value: &str, number: Option<u16>) -> bool {
    let value = value.split([',', '}', ']']).next().unwrap_or_default().trim();
    let literal = value.trim_matches(['"', '\'']);
    match literal.parse::<u16>() {
        // In YAML 1.1 a leading zero makes another number of it.
        Ok(literal) if !value.starts_with('0') => number == Some(literal),
        _ => !["null", "~"].contains(&literal),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "spec.ports[0].nodePort";

    /// A Service with these lines of `spec.ports`.
    fn service(ports: &str) -> String {
        format!(
            "{{{{- if .Values.enabled -}}}}\nmetadata:\n  labels:\n    {{{{- include \"shop.labels\" . | nindent 4 }}}}\nspec:\n  \
             ports:\n{ports}\n  selector:\n    {{{{- include \"shop.selectorLabels\" . | nindent 4 }}}}\n{{{{- end }}}}\n"
        )
    }

    /// The line of nodePort 30080, counted from the first of these.
    fn line(ports: &str) -> Option<u64> {
        TemplateText::new(&service(ports)).line_of(PATH, Some(30080), 17).map(|span| span.line - 6)
    }

    #[test]
    fn the_only_line_with_the_key_is_the_one() {
        for (ports, wanted) in [
            ("    - port: 80\n      nodePort: {{ .Values.nodePort }}", 2),
            ("    - port: 80\n      nodePort: 30080 # of the shop", 2),
            ("    - nodePort: 30080\n      port: {{ .Values.port }}", 1),
            ("    - port: 80\n      nodePort: {{ .Values.nodePort }}\r", 2),
            ("    # nodePort: 30080\n    - port: 80 # nodePort: 30080\n      nodePort: {{ .Values.nodePort }}", 3),
            ("    {{- /* nodePort: 30080\n      nodePort: 30080 */}}\n      nodePort: {{ .Values.nodePort }}", 3),
            (
                "    - port: 80\n      {{- if .Values.nodePort }}\n      nodePort: {{ .Values.nodePort }}\n      {{- end }}",
                3,
            ),
        ] {
            assert_eq!(line(ports), Some(wanted), "{ports}");
        }
        let span = TemplateText::new(&service("    - nodePort: 30080  ")).line_of(PATH, Some(30080), 17);
        assert_eq!(span, Some(Span { line: 7, column: 7, width: 15 }));
        let flow = "    - {port: 80, nodePort: 30080}";
        assert_eq!(TemplateText::new(&service(flow)).line_of(PATH, Some(30080), 28).map(|span| span.line), Some(7));
    }

    #[test]
    fn a_text_of_several_lines_in_an_item_ends_where_the_item_goes_on() {
        let items = "    - name: >-\n        {{ .Values.name }}\n      nodePort: {{ .a }}\n    - name: admin\n      nodePort: {{ .b }}";
        assert_eq!(line(items), None, "either may be it");
    }

    #[test]
    fn of_several_lines_the_one_that_writes_the_number_is_the_one_where_no_other_can() {
        let literal = "    - nodePort: 30080\n    - nodePort: 30081";
        assert_eq!(line(literal), Some(1));
        assert_eq!(line(&format!("{literal}\n    - nodePort: null")), Some(1));
        for other in ["30080", "\"30080\"", "{{ .Values.other }}", "*port", "0x7580", "", "072600"] {
            assert_eq!(line(&format!("{literal}\n    - nodePort: {other}")), None, "{other}");
        }
        assert_eq!(line("    - nodePort: 30081"), None, "another number");
        assert_eq!(line("    - nodePort: {{ .a }}\n    - nodePort: {{ .b }}"), None);
        assert_eq!(line("    - {\"nodePort\":30080, x: {nodePort: 30080}}"), None);
    }

    #[test]
    fn a_line_that_was_rendered_elsewhere_is_none() {
        assert_eq!(TemplateText::new(&service("    - nodePort: 30080")).line_of(PATH, Some(30080), 19), None);
        assert_eq!(line("{{ .x }}- nodePort: 30080"), None, "nobody knows how long what stands before it becomes");
    }

    #[test]
    fn where_an_action_may_write_the_field_no_line_is_the_one() {
        let port = "    - nodePort: {{ .Values.nodePort }}";
        assert_eq!(line(port), Some(1));
        for more in [
            "    {{- toYaml .Values.extraPorts | nindent 4 }}",
            "    - {{ toYaml .Values.extraPort | nindent 6 }}",
            "      {{ .Values.key }}: 30080",
            "  sessionAffinity: None\n  {{- toYaml .Values.spec | nindent 2 }}",
            "  clusterIP: None\n{{ include \"shop.more\" . }}",
            "  clusterIP:\n      {{- toYaml .Values.spec | nindent 2 }}",
            "  selector:\n    a: b\n    {{- toYaml .Values.spec | nindent $n }}",
            "  # {{- toYaml .Values.spec | nindent 2 }}",
            "  ports:{{ toYaml .Values.ports | nindent 4 }}",
            "  selector:\n    {{- include \"shop.ports\" . }}",
            "  # {{ include \"shop.ports\" . }}",
            "  type: {{ include \"shop.type\" . }}",
            "  labels: {{ include \"shop.meta\" . }}",
            "  selector:\n  {{ toYaml .Values.spec | nindent 4 | trim }}",
            "  selector:\n    {{- include \"g\" (dict \"t\" \"}}\" \"c\" .) | nindent 2 }}",
            "  {{ if .Values.ports }}ports:{{ end }}\n    {{- toYaml .Values.ports | nindent 4 }}",
            "  ports:\t# all\n    {{- toYaml .Values.ports | nindent 4 }}",
            "  type: NodePort, ports: {{ toJson .Values.ports }}",
            "  ports: {{ .Values.ports }}",
            "---\nkind: List\nitems:\n{{- toYaml .Values.items | nindent 2 }}",
        ] {
            assert_eq!(line(&format!("{port}\n{more}")), None, "{more}");
        }
        assert_eq!(line("  ports: {{- toYaml .Values.ports | nindent 4 }}\n  x:\n    - nodePort: 30080"), None);
        for more in [
            "      name: {{ .Values.name }}-{{ .Values.more }}",
            "  externalIPs:\n  - {{ .Values.ip }}",
            "  annotations: {{- toYaml .Values.annotations | nindent 4 }}",
            "  {{- $x := .Values.x }}",
            "  # nodePort: {{ .Values.x }}",
            "---\ndata:\n  a: |\n    nodePort: 30080\n\n      nodePort: {{ .x }}\n    {{- toYaml .Values.more | nindent 4 }}",
        ] {
            assert_eq!(line(&format!("{port}\n{more}")), Some(1), "{more}");
        }
    }

    #[test]
    fn an_item_of_a_list_is_written_where_its_list_is() {
        let of = |text: &str| {
            let path = "spec.externalIPs[1]";
            TemplateText::new(&service(&format!("    - port: 80\n{text}")))
                .line_of(path, None, 7)
                .map(|span| span.line - 6)
        };
        assert_eq!(of("  externalIPs:\n    {{- toYaml .Values.ips | nindent 4 }}"), Some(2));
        assert_eq!(of("  externalIPs: [203.0.113.1, 203.0.113.2]"), Some(2));
        assert_eq!(of("  externalIPs: []\n  x:\n    externalIPs: []"), None);
        assert_eq!(of(""), None);
    }

    proptest! {
        #[test]
        fn whatever_a_template_holds_a_line_of_it_is_told_or_none(
            parts in proptest::collection::vec("nodePort|: ?|- |  |\\{\\{|\\}\\}|\n|#|ä|30080|\\||[\"',/*-]|nindent 2|spec|.", 0..40),
        ) {
            let text = parts.concat();
            let lines: Vec<&str> = text.split('\n').collect();
            if let Some(Span { line, column, width }) = TemplateText::new(&text).line_of(PATH, Some(30080), 11) {
                let line = lines[usize::try_from(line - 1).expect("a line of the text")];
                let told = line.chars().skip(usize::try_from(column - 1).expect("a column"));
                let told: String = told.take(usize::try_from(width).expect("a width")).collect();
                prop_assert!(told.starts_with("nodePort"), "{told:?} of {line:?}");
            }
        }
    }
}

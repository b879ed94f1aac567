//! `lint`: judges manifests before they are applied, alone or together with the objects of a cluster.

use std::{
    env,
    io::BufReader,
    path::{Component, Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{ValueEnum, builder::PossibleValue};
use ipnet::IpNet;
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    command_line::UsageError,
    console::Console,
    explain::rule_words,
    progress::Progress,
    report::CountFlags,
    snapshot_files,
    sources::environment,
    words::{Words, wanted},
};
use portreeve_agent::{now, settings::duration};
use portreeve_cluster::{
    self as cluster, Accepted, ApiServer, ClusterSource, Input, ManifestFiles, SourceOptions, read_manifests,
};
use portreeve_facts::{
    Gap, KernelFacts, NodePortRange, Overrides, OwnPort, Place, PortRange, Reading, SNAPSHOT_SCHEMA, Snapshot, Why,
    names, text::shell_word,
};
use portreeve_report as report;
use portreeve_rules::OF_MANIFESTS;
use portreeve_rules::findings::Unknown;
use portreeve_rules::ids::{Named, Rows};
use portreeve_rules::lint::{
    Found, LintReport, Linted, doubt, judge_acceptance, lint, lint_rules, named_of_manifests, range, unread,
    without_accepted,
};

/// The value of `--against` for the cluster of the kubeconfig.
const CLUSTER: &str = "cluster";
/// The reason why Pods are not read: the cluster reader reads only the Pods of one Node, and `lint` has no Node.
const UNREAD_PODS: &str =
    "Pods of a live cluster are not read: to compare with Pods, use --against with a file that has them";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, folders (*.yaml, *.yml and *.json below them), or - for standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The namespace for objects without one [default: with --against cluster the context's, otherwise default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// Compare with a cluster: the word `cluster`, a file of its objects, or a snapshot
    ///
    /// An existing object with the same kind, namespace and name is updated, and is no conflict. From a cluster, Services and Nodes are
    /// read. A file may also have Pods. A snapshot also has the listeners of its node.
    #[arg(long, value_name = "WHAT", help_heading = "Cluster")]
    against: Option<PathBuf>,
    /// The kubeconfig for `--against cluster`, instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE", help_heading = "Cluster", requires = "against")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Cluster", requires = "against")]
    context: Option<String>,
    /// The address of the API server, instead of the kubeconfig's, with the same credentials
    #[arg(long = "apiserver", value_name = "URL", help_heading = "Cluster", requires = "against")]
    api_server: Option<ApiServer>,
    /// The time limit for each pause of the API server, before and within an answer
    #[arg(long, value_name = "DURATION", help_heading = "Cluster", default_value = "10s", value_parser = duration)]
    request_timeout: Duration,
    /// The API server's --service-node-port-range, if the input of --against does not have it [default: 30000-32767]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Cluster")]
    node_port_range: Option<PortRange>,
    /// The network from which the API server allocates cluster IPs, like 10.96.0.0/12; may be given several times
    #[arg(long = "service-cidr", value_name = "CIDR", help_heading = "Cluster")]
    service_cidrs: Vec<IpNet>,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    counting: CountFlags,
    /// Run only this rule, or one of its variants: ID or ID/VARIANT; may be given several times
    #[arg(long = "rule", value_name = "RULE", help_heading = "Output", value_parser = RULE, hide_possible_values = true)]
    rules: Vec<Named>,
    /// Accept input without an object to judge: no Service, no Pod, no pod template
    #[arg(long, help_heading = "Output")]
    allow_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Each finding, its place, and what to write instead
    Table,
    /// `table` with all evidence
    Wide,
    /// One JSON document, `portreeve.lint/v1`
    Json,
    /// The same document as `json`
    Yaml,
    /// Test cases for a pipeline
    Junit,
    /// For code scanning, SARIF 2.1.0
    Sarif,
    /// Annotations of GitHub Actions
    Github,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { output, counting, .. } = args;
    let report = args.report()?;
    // A GitHub runner reads standard output and standard error. An object's name can contain a command, and the runner
    // must not run this command.
    let in_log = |line: String| if output == Form::Github { report::without_commands(&line) } else { line };
    let are_rows = counting.no_headers && matches!(output, Form::Table | Form::Wide);
    // The log of a step must name each file that was not read, because these forms go to a file.
    let are_apart = matches!(output, Form::Sarif | Form::Junit);
    for failure in errors(&report.failures, are_rows || are_apart) {
        console.print_error(&anyhow::Error::msg(in_log(failure)));
    }
    for chart in &report.charts {
        let rendered = format!("helm template {} | portreeve lint -", shell_word(chart));
        console.print_note(&in_log(format!("lint does not read the templates of the chart {chart}: {rendered}")));
    }
    for file in &report.left_out {
        console.print_note(&in_log(format!("lint does not judge {file}")));
    }
    // Documents and full tables contain the notes already.
    if are_rows || matches!(output, Form::Github) {
        notes(&report).for_each(|note| console.print_note(&in_log(note)));
    }
    let style = &console.style;
    console.write(|out| match output {
        Form::Table | Form::Wide if counting.no_headers => report::write_lint_rows(&report, out),
        Form::Table | Form::Wide => report::write_lint_table(&report, output == Form::Wide, style, out),
        Form::Json => report::write_lint_json(&report, out),
        Form::Yaml => report::write_lint_yaml(&report, out),
        Form::Junit => report::write_lint_junit(&report, out),
        Form::Sarif => report::write_lint_sarif(&report, out),
        Form::Github => report::write_annotations(&report, out),
    })?;
    Ok(counting.end(report::lint_result(&report), !report::is_undecided(&report)))
}

fn notes(report: &LintReport) -> impl Iterator<Item = String> {
    let accepted = (report.accepted > 0).then(|| format!("accepted: {}", report.accepted));
    report.unknown.iter().map(|it| format!("not known: {}: {}", it.rows, it.gap.detail)).chain(accepted)
}

/// If `each` is false, one error has the first failure and the number of the other failures.
fn errors(failures: &[(Gap, Option<Place>)], each: bool) -> Vec<String> {
    match failures {
        [(first, _), others @ ..] if !each && !others.is_empty() => {
            vec![format!("{} (and {} more)", first.detail, others.len())]
        }
        all => all.iter().map(|(gap, _)| gap.detail.clone()).collect(),
    }
}

impl Args {
    fn report(self) -> anyhow::Result<LintReport> {
        let Self { paths, namespace, against, kubeconfig, context, api_server, request_timeout, .. } = self;
        let of_cluster = kubeconfig.is_some() || context.is_some() || api_server.is_some();
        if let Some(what) = &against {
            compares_with(what, of_cluster)?;
        }
        let here = env::current_dir().unwrap_or_default();
        let paths: Vec<PathBuf> = paths.into_iter().map(|path| relative(path, &here)).collect();
        let options = SourceOptions {
            services: Vec::new(),
            kubeconfig,
            context,
            api_server,
            request_timeout: Some(request_timeout),
        };
        let (mut around, not_named, looked_at) = match &against {
            None => (alone(), None, None),
            Some(what) => around(what, options)?,
        };
        let not_named = not_named.filter(|_| namespace.is_none());
        let ManifestFiles {
            facts,
            manifests,
            mut failures,
            objects,
            whole: judged,
            again,
            files,
            charts,
            left_out,
            skipped,
        } = read_manifests(&paths, namespace.as_deref().or(not_named.as_deref()));
        // The line `compared with` already reports the Services that a file lacks.
        let lacking = around.cluster.lacks_services();
        around.cluster.rejected.retain(|gap| Some(gap) != lacking.as_ref());
        let named = self.node_port_range.map(|range| NodePortRange::configured(range, "--node-port-range"));
        if against.is_some() {
            failures.extend(unread(&around, named.as_ref()).into_iter().map(|gap| (gap, None)));
        }
        let range = range(named, &around);
        let has_port = manifests.iter().flat_map(|it| &it.claims).any(|claim| claim.what.port().is_some());
        let (all, named) = (self.rules.is_empty(), &self.rules);
        let is_requested = |rows: &Rows| all || named.iter().any(|it| it.names_any(rows.rule.0, rows.variants));
        let rules: Vec<Rows> = lint_rules().filter(is_requested).collect();
        let mut chosen = OF_MANIFESTS.iter().filter(|rule| rules.contains(&rule.rows()));
        let needs_range = has_port && chosen.any(|rule| rule.reads(portreeve_facts::Source::NodePortRange));
        failures.extend(doubt(&range, &around.cluster, &facts).filter(|_| needs_range).map(|gap| (gap, None)));
        let against = against.map(|_| match around.cluster.pods.gap() {
            Some(gap) if gap.why == Why::NotRequested => format!("{}, without its Pods", around.cluster.origin),
            _ => around.cluster.origin.clone(),
        });
        around.cluster.service_cidrs.extend(self.service_cidrs);
        let linted = Linted::new(manifests, facts, around, &range);
        let Found { mut findings, unknown, not_run } = lint(&linted, &rules);
        let unknown = unknown.into_iter().map(|((rows, gap), claims)| Unknown { rows, subject: None, claims, gap });
        findings.retain(|found| all || named.iter().any(|it| it.names(found.rule.0, found.evidence.variant)));
        let (findings, accepted) = without_accepted(&linted, findings);
        failures.extend(judge_acceptance(&linted).into_iter().map(|(gap, place)| (gap, Some(place))));
        if judged == 0 && !self.allow_empty && failures.is_empty() {
            let detail = format!("{}; --allow-empty accepts such input", report::nothing_judged(files, &skipped));
            failures.push((Gap::new(portreeve_facts::Source::Services, Why::Malformed, detail), None));
        }
        let min_severity = self.counting.min_severity;
        Ok(LintReport {
            findings,
            failures,
            unknown: unknown.collect(),
            rules,
            not_run,
            accepted,
            files,
            charts: charts.iter().map(|path| path.display().to_string()).collect(),
            left_out,
            objects,
            judged,
            again,
            skipped,
            range,
            against,
            looked_at,
            namespace: not_named,
            min_severity,
        })
    }
}

fn compares_with(what: &Path, flags_of_a_cluster: bool) -> Result<(), UsageError> {
    if what.as_os_str() == "-" {
        return Err(UsageError("--against cannot read standard input: give a file, or the word `cluster`".to_owned()));
    }
    if flags_of_a_cluster && what.as_os_str() != CLUSTER {
        let flags = "--kubeconfig, --context and --apiserver work only with --against cluster";
        return Err(UsageError(format!("{flags}: leave them out with --against {}", what.display())));
    }
    Ok(())
}

/// The objects to compare manifests with. For a cluster, the second value is the namespace that kubectl and Helm use
/// for objects without a namespace. The third value is the time at which the cluster or a node was read. A file of
/// objects has no time.
fn around(what: &Path, options: SourceOptions) -> anyhow::Result<(Snapshot, Option<String>, Option<Timestamp>)> {
    if what.as_os_str() == CLUSTER {
        let source = ClusterSource::discover(options, &environment());
        if source == ClusterSource::None {
            bail!("--against cluster: no cluster is configured, wanted --kubeconfig, $KUBECONFIG or ~/.kube/config");
        }
        let looked_at = now();
        let progress = Progress::start();
        progress.show("reading the cluster");
        let read = cluster::read_with_namespace(&source, None, "").context("starting the runtime")?;
        let (mut facts, namespace) = read;
        if let Reading::Gap(gap) = &mut facts.pods
            && gap.why == Why::NotRequested
        {
            UNREAD_PODS.clone_into(&mut gap.detail);
        }
        let namespace = namespace.map(|it| if names::is_label(&it) { it } else { "default".to_owned() });
        return Ok((Snapshot { cluster: facts, ..alone() }, namespace, Some(looked_at)));
    }
    let input = Input::from(what.to_owned());
    if is_snapshot(&input).with_context(|| format!("--against {input}"))? {
        let snapshot = snapshot_files::read(what)?;
        let looked_at = snapshot.at;
        return Ok((snapshot, None, Some(looked_at)));
    }
    let facts = cluster::read_now(&ClusterSource::Files(vec![input]), None, "").context("starting the runtime")?;
    Ok((Snapshot { cluster: facts, ..alone() }, None, None))
}

/// Whether a file is a snapshot: one JSON object with the schema of snapshots. The file is read again later.
fn is_snapshot(input: &Input) -> std::io::Result<bool> {
    #[derive(Deserialize)]
    struct Header {
        schema: Option<String>,
    }
    let file = BufReader::new(input.open(Accepted::RegularFiles)?);
    match serde_json::from_reader::<_, Header>(file) {
        Ok(header) => Ok(header.schema.as_deref() == Some(SNAPSHOT_SCHEMA)),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(false),
    }
}

fn alone() -> Snapshot {
    let cluster = cluster::read_now(&ClusterSource::None, None, "").expect("no cluster needs no runtime");
    Snapshot {
        schema: SNAPSHOT_SCHEMA.to_owned(),
        version: None,
        at: now(),
        connections_at: None,
        pods_at: None,
        overrides: Overrides::default(),
        kernel: KernelFacts::not_requested(),
        cluster,
        own_port: OwnPort::not_requested(),
    }
}

/// Makes a path relative to `here`, usually the root of the repository. Code hosts need relative paths to show findings
/// at lines. Keeps the path if a symbolic link would make the new path name another file.
fn relative(path: PathBuf, here: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.strip_prefix(here).unwrap_or(&path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(short.components().next_back(), Some(Component::Normal(_))) => {
                short.pop();
            }
            part => short.push(part),
        }
    }
    if short.as_os_str().is_empty() {
        short.push(".");
    }
    if short.as_os_str() == path.as_os_str() {
        return path;
    }
    // A single dash would mean standard input.
    if short.as_os_str() == "-" {
        return PathBuf::from("./-");
    }
    let leads_to = |path: &Path| path.canonicalize().ok();
    if leads_to(&short).is_some_and(|to| leads_to(&path) == Some(to)) { short } else { path }
}

const RULE: Words<Named> = Words { words: words_of_manifests, parse: rule };

fn words_of_manifests() -> Vec<PossibleValue> {
    rule_words().into_iter().filter(|word| named_of_manifests(word.get_name()).is_some()).collect()
}

fn rule(text: &str) -> Result<Named, String> {
    let what = "not a rule that judges manifests, wanted ID or ID/VARIANT: see docs/lint.md";
    named_of_manifests(text).ok_or_else(|| wanted(what, text, &words_of_manifests()))
}

fn namespace(name: &str) -> Result<String, String> {
    match names::is_label(name) {
        true => Ok(name.to_owned()),
        false => Err(format!("wanted {}", names::LABEL_WORDS)),
    }
}

//! Pure. A page of metrics in Prometheus' text format.
//!
//! Source: "Exposition formats", text format 0.0.4; names after "Metric and label naming".

use std::fmt::Write as _;

/// The media type of a page.
pub const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page that is written from top to bottom.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

/// Label names and values.
pub type MetricLabels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// The finished page.
    pub fn text(self) -> String {
        self.text
    }

    /// A number that goes up and down, with its only sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help).sample(&[], value);
    }

    /// Numbers that go up and down.
    pub fn gauges(&mut self, name: &str, help: &str) -> Samples<'_> {
        self.family(name, "gauge", help)
    }

    /// A count since the start, with its only sample; its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help).sample(&[], value as f64);
    }

    /// Counts since the start; the name ends in `_total`.
    pub fn counters(&mut self, name: &str, help: &str) -> Samples<'_> {
        self.family(name, "counter", help)
    }

    pub fn histograms(&mut self, name: &str, help: &str) -> Samples<'_> {
        self.family(name, "histogram", help)
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) -> Samples<'_> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect(TAKES);
        Samples { text: &mut self.text, name: name.to_owned() }
    }
}

/// What belongs to one name.
#[derive(Debug)]
pub struct Samples<'p> {
    text: &'p mut String,
    name: String,
}

impl Samples<'_> {
    /// One number.
    pub fn sample(&mut self, labels: MetricLabels<'_>, value: f64) {
        let name = self.name.clone();
        self.line(&name, labels, None, value);
    }

    /// One histogram: `bounds` in seconds, one class more than bounds, and the `sum` in seconds.
    pub fn histogram(
        &mut self,
        labels: MetricLabels<'_>,
        bounds: &[f64],
        classes: &[u64],
        sum: f64,
    ) {
        let (bucket, mut below) = (format!("{}_bucket", self.name), 0);
        for (position, class) in classes.iter().enumerate() {
            below += class;
            let bound = bounds.get(position).map_or("+Inf".to_owned(), f64::to_string);
            self.line(&bucket, labels, Some(&bound), below as f64);
        }
        self.line(&format!("{}_sum", self.name), labels, None, sum);
        self.line(&format!("{}_count", self.name), labels, None, below as f64);
    }

    fn line(&mut self, name: &str, labels: MetricLabels<'_>, bound: Option<&str>, value: f64) {
        self.text.push_str(name);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut opened = false;
        for (label, value) in all {
            self.text.push(if opened { ',' } else { '{' });
            opened = true;
            write!(self.text, "{label}=\"{}\"", escaped(value)).expect(TAKES);
        }
        let end = if opened { "} " } else { " " };
        writeln!(self.text, "{end}{value}").expect(TAKES);
    }
}

const TAKES: &str = "a String takes everything";

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_explained_before_its_samples() {
        let mut page = Page::default();
        page.gauge("a", "an\\a\nb", 1.5);
        let mut counters = page.counters("b_total", "b");
        counters.sample(&[("kind", "x\"y\\z\n")], 3.0);
        counters.sample(&[("kind", "w"), ("of", "v")], 0.0);
        let wanted = "# HELP a an\\\\a\\nb\n# TYPE a gauge\na 1.5\n\
            # HELP b_total b\n# TYPE b_total counter\n\
            b_total{kind=\"x\\\"y\\\\z\\n\"} 3\nb_total{kind=\"w\",of=\"v\"} 0\n";
        assert_eq!(page.text(), wanted);
    }

    #[test]
    fn the_classes_of_a_histogram_contain_those_below() {
        let mut page = Page::default();
        page.histograms("d", "d").histogram(&[("verb", "ADD")], &[0.001, 1.0], &[2, 0, 1], 5.25);
        let wanted = "# HELP d d\n# TYPE d histogram\n\
            d_bucket{verb=\"ADD\",le=\"0.001\"} 2\nd_bucket{verb=\"ADD\",le=\"1\"} 2\n\
            d_bucket{verb=\"ADD\",le=\"+Inf\"} 3\nd_sum{verb=\"ADD\"} 5.25\nd_count{verb=\"ADD\"} 3\n";
        assert_eq!(page.text(), wanted);
    }
}

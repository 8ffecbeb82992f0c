use crate::ipam::calls::*;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(crate::ipam::calls::folder(folder.path())).unwrap();
    folder
}

fn all(data_dir: &Path) -> u64 {
    read(data_dir).unwrap().values().map(Series::count).sum()
}

/// Puts lines of `count` calls into a file of the folder.
fn lines(folder: &Path, name: &str, count: usize) {
    fs::write(folder.join(name), "ADD 0 1500\n".repeat(count)).unwrap();
}

#[test]
fn calls_are_counted_by_verb_outcome_and_time() {
    let data = tempfile::tempdir().unwrap();
    assert_eq!(read(data.path()).unwrap(), Calls::new());
    for (verb, code, millis) in [("ADD", 0, 2), ("ADD", 0, 30_000), ("ADD", 11, 1), ("DEL", 0, 1)] {
        count(data.path(), verb, code, Duration::from_millis(millis));
    }
    let calls = read(data.path()).unwrap();
    let keys: Vec<_> = calls.keys().copied().collect();
    assert_eq!(keys, [("ADD", 0), ("ADD", 11), ("DEL", 0)]);
    let added = &calls[&("ADD", 0)];
    assert_eq!((added.count(), added.micros), (2, 30_002_000));
    assert_eq!((added.classes[1], added.classes[BOUNDS_MICROS.len()]), (1, 1));
}

#[test]
fn writers_at_once_are_all_counted_while_logs_are_folded_and_read() {
    const WRITERS: usize = 8;
    const EACH: usize = 4_000;
    let data = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                (0..EACH).for_each(|_| count(data.path(), "ADD", 0, Duration::from_micros(1)));
            });
        }
        let mut last = 0;
        while last < (WRITERS * EACH) as u64 {
            let now = all(data.path());
            assert!(now >= last, "a counter never goes back: {now} after {last}");
            last = now;
        }
    });
    assert_eq!(all(data.path()), (WRITERS * EACH) as u64);
}

#[test]
fn many_calls_take_no_more_room_than_some() {
    const CALLS: u64 = 20_000;
    let data = folder();
    let begun = std::time::Instant::now();
    (0..CALLS).for_each(|_| count(data.path(), "CHECK", 0, Duration::from_micros(123_456)));
    println!("{:?} each", begun.elapsed() / CALLS as u32);
    let files = fs::read_dir(crate::ipam::calls::folder(data.path())).unwrap();
    let kept: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 3 * LOG_BYTES, "{kept} bytes for {CALLS} calls");
    assert_eq!(all(data.path()), CALLS);
}

#[test]
fn killed_between_any_two_steps_of_a_fold_nothing_is_lost_or_doubled() {
    let sum = |count: u64, folded| {
        let mut series = Series::default();
        (0..count).for_each(|_| series.add(1500));
        text(&BTreeMap::from([(("ADD", 0), series)]), folded)
    };
    // Files as each step leaves them, beginning with 100 in the sum, 20 aside, 3 in the log.
    let steps: [&[(&str, usize)]; 4] = [
        &[("log.8", 20), ("log", 3)],
        &[("log.8", 20), ("log", 3)],
        &[("log", 3)],
        &[("log.9", 3)],
    ];
    for (step, files) in steps.into_iter().enumerate() {
        let data = folder();
        let folder = crate::ipam::calls::folder(data.path());
        let total = if step == 0 { sum(100, 7) } else { sum(120, 8) };
        fs::write(folder.join("total"), total).unwrap();
        fs::write(folder.join("total.new"), "humanz calls, sch").unwrap();
        files.iter().for_each(|(name, count)| lines(&folder, name, *count));
        assert_eq!(all(data.path()), 123, "step {step}");
        lines(&folder, "log", if step == 3 { 0 } else { 3 });
        fold(&folder).unwrap();
        assert_eq!(all(data.path()), 123, "folded after step {step}");
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("log"))
            .collect();
        names.sort();
        assert_eq!(names.len(), 1, "{names:?} after step {step}");
    }
}

#[test]
fn bytes_that_are_none_of_ours_are_skipped() {
    let data = folder();
    let folder = crate::ipam::calls::folder(data.path());
    let garbage = b"ADD 0 1500\nADD 0 15\xff\nEAT 0 1\nADD x 1\nADD 0 -1\n\n\0\nADD 0 99999999999999999999\nADD 0 1500\nADD 0 15";
    fs::write(folder.join("log"), garbage).unwrap();
    for total in ["", "garbage", "humanz calls, schema 1, up to log 3\nADD 0 7 1\n"] {
        fs::write(folder.join("total"), total).unwrap();
        assert_eq!(all(data.path()), 2, "{total:?}");
    }
    // What a full file system cut off joins the next line: both are lost, and no more.
    count(data.path(), "ADD", 0, Duration::from_micros(1));
    count(data.path(), "ADD", 0, Duration::from_micros(1));
    assert_eq!(all(data.path()), 3);
}

#[test]
fn a_call_that_cannot_be_counted_is_none_the_worse() {
    count(Path::new("/nonexistent"), "ADD", 0, Duration::ZERO);
    assert!(!Path::new("/nonexistent").exists());
    let data = folder();
    fs::create_dir(crate::ipam::calls::folder(data.path()).join("log")).unwrap();
    count(data.path(), "ADD", 0, Duration::ZERO);
    assert!(read(data.path()).is_err());
}

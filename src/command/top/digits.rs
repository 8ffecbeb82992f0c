//! Pure. Numbers that take little room.

/// With three digits: `999`, `12.3 k`, `1.20 G`.
pub fn short(number: u64) -> String {
    const UNITS: [&str; 6] = ["", " k", " M", " G", " T", " P"];
    let (mut value, mut unit) = (number as f64, 0);
    // What would be rounded to 1000 has the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.00 k"),
            (9_996, "10.0 k"),
            (99_960, "100 k"),
            (999_499, "999 k"),
            (999_600, "1.00 M"),
            (u64::MAX, "18447 P"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}

//! Pure. The bits of a connection's mark that hold the epoch.

/// Neighbouring bits of a connection's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkBits(u32);

impl Default for MarkBits {
    fn default() -> MarkBits {
        MarkBits::DEFAULT
    }
}

impl MarkBits {
    /// The upper half.
    pub const DEFAULT: MarkBits = MarkBits(0xffff_0000);

    /// `None` unless at least 16 bits that stand beside each other: a connection that was idle through as many
    /// epochs as there are would pass for judged.
    pub fn new(bits: u32) -> Option<MarkBits> {
        let number = bits.checked_shr(bits.trailing_zeros())?;
        (number & number.wrapping_add(1) == 0 && number.count_ones() >= 16)
            .then_some(MarkBits(bits))
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// The mark of an epoch; `number` counts round. Never zero, the mark of a new connection.
    pub fn epoch(self, number: u32) -> u32 {
        let shift = self.0.trailing_zeros();
        let count = self.0 >> shift;
        (number % count + 1) << shift
    }

    /// The mark of the epoch after the one with this mark.
    pub fn next(self, mark: u32) -> u32 {
        self.epoch((mark & self.0) >> self.0.trailing_zeros())
    }

    /// `mark` is that of an epoch.
    pub fn is_epoch(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
}

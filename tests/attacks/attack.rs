//! Frames that an attacker sends, and those of them that arrive.

use crate::packets::ethernet;
use crate::scene::{At, Scene};

/// Frames of the attacker, and what shows that they arrived.
pub struct Attack {
    pub name: String,
    pub frames: Vec<Vec<u8>>,
    pub at: At,
    pub needles: Vec<Vec<u8>>,
}

pub struct Attacks<'a> {
    pub scene: &'a Scene,
    pub list: Vec<Attack>,
}

impl Attacks<'_> {
    /// One frame of the attacker to the victim; `needle` must be in what arrives.
    pub fn at_victim(&mut self, name: &str, kind: u16, payload: Vec<u8>, needle: &[u8]) {
        let (to, from) = (self.scene.victim.mac, self.scene.attacker.mac);
        self.frame(name, At::Victim, ethernet(to, from, kind, &payload), needle);
    }

    pub fn frame(&mut self, name: &str, at: At, frame: Vec<u8>, needle: &[u8]) {
        self.frames(name, at, vec![frame], &[needle]);
    }

    /// Frames that do nothing unless each of `needles` arrives.
    pub fn frames(&mut self, name: &str, at: At, frames: Vec<Vec<u8>>, needles: &[&[u8]]) {
        let name = name.to_owned();
        let needles = needles.iter().map(|needle| needle.to_vec()).collect();
        self.list.push(Attack { name, frames, at, needles });
    }

    /// A mark that is in no other frame.
    pub fn mark(&self) -> [u8; 8] {
        let number = u8::try_from(self.list.len()).unwrap();
        [b'a', b't', b't', b'a', b'c', b'k', 0xc5, number]
    }
}

/// The attacks that arrive.
pub fn arriving(scene: &Scene, attacks: &[Attack]) -> Vec<String> {
    let arrives = |attack: &&Attack| scene.arrives(&attack.frames, attack.at, &attack.needles);
    attacks.iter().filter(arrives).map(|attack| attack.name.clone()).collect()
}

//! Threads of the agent and of subcommands.

use std::io;
use std::iter;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// There can be no more threads.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    spawn_boxed(name, Box::new(work))
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that does what it is given, one after the other, as long as the process lives.
pub struct Worker(Arc<Queue>);

/// A channel of the standard library would be 9 KB of code.
#[derive(Default)]
struct Queue {
    all: Mutex<Vec<Work>>,
    is_new: Condvar,
}

impl Worker {
    /// # Errors
    /// As [`spawn`].
    pub fn spawn(name: &str) -> io::Result<Worker> {
        let queue = Arc::<Queue>::default();
        let worker = Worker(Arc::clone(&queue));
        let all = iter::repeat_with(move || queue.wait()).flatten();
        spawn(name, move || all.for_each(|work| work()))?;
        Ok(worker)
    }

    /// Returns at once.
    pub fn give(&self, work: impl FnOnce() + Send + 'static) {
        self.0.lock().push(Box::new(work));
        self.0.is_new.notify_one();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Vec<Work>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> Vec<Work> {
        let all = self.is_new.wait_while(self.lock(), |all| all.is_empty());
        std::mem::take(&mut *all.unwrap_or_else(PoisonError::into_inner))
    }
}

/// The standard library's for each type of closure was 16 KB of code in all.
fn spawn_boxed(name: &str, work: Work) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_worker_does_everything_in_its_order_on_its_thread() {
        let (sender, done) = channel();
        let worker = Worker::spawn("works").unwrap();
        for number in 0..100 {
            let sender = sender.clone();
            worker.give(move || {
                let name = std::thread::current().name().map(str::to_owned);
                sender.send((number, name)).unwrap();
            });
        }
        drop(sender);
        let expected: Vec<_> = (0..100).map(|number| (number, Some("works".to_owned()))).collect();
        assert_eq!(done.iter().collect::<Vec<_>>(), expected);
    }
}

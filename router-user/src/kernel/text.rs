//! The status for people.

use std::fmt;

use super::KernelStatus;
use crate::model::Generation;

impl fmt::Display for KernelStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.attached && self.programs.is_empty() {
            return writeln!(f, "kernel plane: not attached");
        }
        let state = if self.attached { "attached" } else { "not attached to anything that exists" };
        let service = self.service.map_or("no service".to_owned(), |service| format!("service {service}"));
        writeln!(f, "kernel plane: {state}, {service}, generation {}", Generation(self.generation))?;
        for program in &self.programs {
            writeln!(f, "  program {} ({}, id {}) on {}", program.name, program.hook, program.id, program.place)?;
        }
        for engine in &self.engines {
            let listening = if engine.is_listening { "listening" } else { "not listening" };
            writeln!(f, "  engine {} {listening}, {} connections", engine.address, engine.picks)?;
        }
        for (outcome, count) in self.counters.iter().filter(|(_, count)| **count > 0) {
            writeln!(f, "  {outcome} {count}")?;
        }
        Ok(())
    }
}

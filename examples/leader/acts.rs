//! The acts of the leaders. Each act adds the leader's fence and process to a log, which refuses the fences of former
//! leaders.

use redis::{Connection, Script, TypedCommands};

use crate::Outcome;

const ADD: &str = "
    local newest = string.match(redis.call('LINDEX', KEYS[1], -1) or '0', '%d+')
    if tonumber(ARGV[1]) < tonumber(newest) then return 0 end
    redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
    redis.call('EXPIRE', KEYS[1], 600)
    return 1";

#[derive(Clone, Copy)]
pub struct Act {
    pub fence: u64,
    pub process: u32,
}

pub struct Acts {
    redis: Connection,
    key: String,
}

impl Acts {
    pub fn new(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self {
            redis: redis::Client::open(url)?.get_connection()?,
            key: format!("{name}:acts"),
        })
    }

    pub fn add(&mut self, act: Act) -> Outcome {
        let script = Script::new(ADD);
        let mut call = script.key(&self.key);
        call.arg(act.fence).arg(act.process);
        let _added: bool = call.invoke(&mut self.redis)?;
        Ok(())
    }

    pub fn newest(&mut self) -> Outcome<Option<Act>> {
        let act = self.redis.lindex(&self.key, -1)?;
        act.map(|act| parse(&act)).transpose()
    }

    /// Checks that no two leaders had one fence, and removes the log. Returns the number of acts.
    pub fn check(&mut self) -> Outcome<usize> {
        let lines = self.redis.lrange(&self.key, 0, -1)?;
        self.redis.del(&self.key)?;
        let acts = lines
            .iter()
            .map(|act| parse(act))
            .collect::<Outcome<Vec<_>>>()?;
        for two in acts.windows(2) {
            let same = two[0].process == two[1].process;
            if two[0].fence > two[1].fence || (two[0].fence == two[1].fence && !same) {
                return Err(format!("two leaders acted by fence {}", two[1].fence).into());
            }
        }
        Ok(acts.len())
    }
}

fn parse(act: &str) -> Outcome<Act> {
    let (fence, process) = act.split_once(' ').ok_or("no act")?;
    Ok(Act {
        fence: fence.parse()?,
        process: process.parse()?,
    })
}

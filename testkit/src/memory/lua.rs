//! The Lua of Redis, version 5.1, and the scripts that a server has seen.
//!
//! A script sees what it sees in Redis: `KEYS`, `ARGV`, `redis.call`, `redis.pcall`, `redis.error_reply`,
//! `redis.status_reply`, and the libraries `string`, `table` and `math`. It may not use a global variable that does not
//! exist.

use std::collections::BTreeMap;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table};

use super::arguments::{CommandError, float_text};
use super::resp::Resp;

/// The scripts that the server has seen.
pub(super) struct Scripts {
    lua: Lua,
    /// Calls a script: see the end of `PRELUDE`.
    run: Function,
    /// The scripts that a client may name, by their digests.
    loaded: BTreeMap<String, Function>,
    /// All that were ever compiled, by the lengths of their texts. Most texts come more than once: with each connection, and
    /// after a restart.
    compiled: BTreeMap<usize, Vec<CompiledScript>>,
}

struct CompiledScript {
    text: Vec<u8>,
    digest: String,
    script: Function,
}

/// By how many percent the memory grows from one collection to the next. The functions of the scripts are most of it, so a
/// collection finds little.
const COLLECTS_AFTER: i32 = 1_000;

/// Defines what scripts see. Returns the function that calls a script.
const PRELUDE: &str = r#"
local command
redis = {}

function redis.pcall(...)
  return command(...)
end

function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end

function redis.error_reply(text)
  return {err = text}
end

function redis.status_reply(text)
  return {ok = text}
end

setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})

return function(script, of_script, keys, argv)
  command = of_script
  rawset(_G, 'KEYS', keys)
  rawset(_G, 'ARGV', argv)
  return pcall(script)
end
"#;

impl Scripts {
    pub(super) fn new() -> mlua::Result<Self> {
        let lua = Lua::new_with(
            StdLib::STRING | StdLib::TABLE | StdLib::MATH,
            LuaOptions::default(),
        )?;
        lua.gc_inc(COLLECTS_AFTER, 0, 0);
        let run = lua.load(PRELUDE).eval()?;
        Ok(Self {
            lua,
            run,
            loaded: BTreeMap::new(),
            compiled: BTreeMap::new(),
        })
    }

    /// Loads a script, and returns its digest.
    pub(super) fn load(&mut self, text: &[u8]) -> Result<String, CommandError> {
        let of_its_length = self.compiled.entry(text.len()).or_default();
        let known = of_its_length.iter().position(|it| it.text == text);
        let at = known.unwrap_or(of_its_length.len());
        if known.is_none() {
            of_its_length.push(compile(&self.lua, text)?);
        }
        let CompiledScript { digest, script, .. } = &of_its_length[at];
        if !self.loaded.contains_key(digest) {
            self.loaded.insert(digest.clone(), script.clone());
        }
        Ok(digest.clone())
    }

    pub(super) fn is_loaded(&self, digest: &str) -> bool {
        self.loaded.contains_key(digest)
    }

    pub(super) fn forget_all(&mut self) {
        self.loaded.clear();
    }

    pub(super) fn get(&self, digest: &str) -> Option<LoadedScript> {
        let script = self.loaded.get(digest)?.clone();
        Some(LoadedScript {
            digest: digest.to_owned(),
            lua: self.lua.clone(),
            run: self.run.clone(),
            script,
        })
    }
}

impl LoadedScript {
    /// Runs the script. `call` executes the commands that it calls.
    pub(super) fn run(
        self,
        keys: &[Vec<u8>],
        argv: &[Vec<u8>],
        mut call: impl FnMut(&[Vec<u8>]) -> Resp,
    ) -> Result<Resp, CommandError> {
        let Self {
            digest,
            lua,
            run,
            script,
        } = self;
        let outcome = lua.scope(|scope| {
            let command = scope.create_function_mut(|lua, words: MultiValue| {
                let reply = match command_words(words) {
                    Ok(words) => call(&words),
                    Err(error) => Resp::Error(error.0),
                };
                lua_value(lua, reply)
            })?;
            let texts = |texts: &[Vec<u8>]| {
                let texts = texts.iter().map(|text| lua.create_string(text));
                lua.create_sequence_from(texts.collect::<mlua::Result<Vec<_>>>()?)
            };
            run.call::<(bool, mlua::Value)>((script, command, texts(keys)?, texts(argv)?))
        });
        match outcome {
            Ok((true, value)) => Ok(resp(&value)),
            Ok((false, error)) => Err(raised(&error, &digest)),
            // Such as a script that needs too much memory.
            Err(error) => Err(CommandError(format!("ERR {error}"))),
        }
    }
}

/// A script, and the Lua in which it runs.
pub(super) struct LoadedScript {
    digest: String,
    lua: Lua,
    run: Function,
    script: Function,
}

fn compile(lua: &Lua, text: &[u8]) -> Result<CompiledScript, CommandError> {
    let script = lua.load(text).set_name("@user_script").into_function();
    let script = script.map_err(|error| {
        CommandError(format!(
            "ERR Error compiling script (new function): {error}"
        ))
    })?;
    Ok(CompiledScript {
        text: text.to_vec(),
        digest: sha1_smol::Sha1::from(text).digest().to_string(),
        script,
    })
}

/// Returns the words of a command that a script calls.
fn command_words(words: MultiValue) -> Result<Vec<Vec<u8>>, CommandError> {
    if words.is_empty() {
        let text = "ERR Please specify at least one argument for this redis.call() call";
        return Err(CommandError::new(text));
    }
    let word = |word| match word {
        mlua::Value::String(text) => Ok(text.as_bytes().to_vec()),
        mlua::Value::Integer(int) => Ok(int.to_string().into_bytes()),
        mlua::Value::Number(number) => Ok(float_text(number).into_bytes()),
        _ => Err(CommandError::new(
            "ERR Lua redis lib command arguments must be strings or integers",
        )),
    };
    words.into_iter().map(word).collect()
}

/// Returns a reply as a script sees it.
fn lua_value(lua: &Lua, reply: Resp) -> mlua::Result<mlua::Value> {
    let field = |name: &str, text: String| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(mlua::Value::Table(table))
    };
    match reply {
        Resp::Status(text) => field("ok", text),
        Resp::Error(text) => field("err", text),
        Resp::Int(int) => Ok(mlua::Value::Integer(int)),
        Resp::Bulk(bytes) => lua.create_string(bytes).map(mlua::Value::String),
        Resp::Nil | Resp::NilArray => Ok(mlua::Value::Boolean(false)),
        Resp::Array(parts) => {
            let parts = parts.into_iter().map(|part| lua_value(lua, part));
            let parts = parts.collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(parts).map(mlua::Value::Table)
        }
    }
}

/// Returns what a script returns as a reply.
fn resp(value: &mlua::Value) -> Resp {
    match value {
        mlua::Value::String(text) => Resp::bulk(text.as_bytes().to_vec()),
        mlua::Value::Integer(int) => Resp::Int(*int),
        mlua::Value::Number(number) => Resp::Int(*number as i64),
        mlua::Value::Boolean(true) => Resp::Int(1),
        mlua::Value::Table(table) => {
            if let Some(text) = text_field(table, "err") {
                return Resp::Error(text.strip_prefix('-').unwrap_or(&text).to_owned());
            }
            if let Some(text) = text_field(table, "ok") {
                return Resp::Status(text);
            }
            // An array ends at the first nil.
            let parts = (1_i64..).map_while(|at| {
                let part: mlua::Value = table.raw_get(at).ok()?;
                (!part.is_nil()).then(|| resp(&part))
            });
            Resp::Array(parts.collect())
        }
        _ => Resp::Nil,
    }
}

fn text_field(table: &Table, name: &str) -> Option<String> {
    match table.raw_get(name).ok()? {
        mlua::Value::String(text) => Some(text.to_string_lossy()),
        _ => None,
    }
}

/// Returns the error that ended a script. By its end a client knows that the script may have written something. The line is
/// not the real one.
fn raised(error: &mlua::Value, digest: &str) -> CommandError {
    let text = match error {
        mlua::Value::Table(table) => text_field(table, "err"),
        mlua::Value::String(text) => Some(format!("ERR {}", text.to_string_lossy())),
        _ => None,
    };
    let text = text.unwrap_or_else(|| "ERR unknown error".into());
    CommandError(format!("{text} script: {digest}, on @user_script:1."))
}

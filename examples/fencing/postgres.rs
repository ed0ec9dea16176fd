//! PostgreSQL, behind `psql`.

use std::process::{self, Command};

use crate::Outcome;
use crate::database::{Database, answer, pipe};

/// A schema in the database of a URL. The schema ends with this value, so other tables of the database are safe.
pub struct Postgres {
    url: String,
    schema: String,
}

impl Postgres {
    pub fn create(url: &str, tables: &str) -> Outcome<Self> {
        let schema = format!("leasehold_fencing_{}", process::id());
        let create = format!(
            "BEGIN;\nCREATE SCHEMA {schema};\nSET search_path = {schema};\n{tables}\nCOMMIT;\n"
        );
        pipe(&mut psql(url), &create)?;
        let url = url.to_owned();
        Ok(Self { url, schema })
    }
}

impl Database for Postgres {
    fn run(&self, sql: &str, values: &[(&str, i64)]) -> Outcome<Option<String>> {
        let (check, rest) = sql.split_once(";\n").ok_or("SQL without an end")?;
        // psql replaces `:ROW_COUNT` by the number of rows that the check has changed.
        let transaction = format!(
            "SET search_path = {};\nBEGIN;\n{check};\n\\if :ROW_COUNT\n{rest}\nCOMMIT;\n\\echo accepted\n\
             \\else\nROLLBACK;\n\\echo rejected\n\\endif\n",
            self.schema
        );
        let mut psql = psql(&self.url);
        for (name, value) in values {
            psql.arg(format!("--set={name}={value}"));
        }
        answer(&pipe(&mut psql, &transaction)?)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA {} CASCADE;", self.schema);
        if let Err(error) = pipe(&mut psql(&self.url), &sql) {
            eprintln!("the schema {} is left: {error}", self.schema);
        }
    }
}

fn psql(url: &str) -> Command {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
    psql.args(["--set=ON_ERROR_STOP=1", "--dbname", url]);
    psql
}

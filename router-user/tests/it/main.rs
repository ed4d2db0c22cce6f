mod golden;
mod plan;
mod plan_check;
mod plan_decision;
mod plan_fleet;
mod plan_laws;
mod plan_oracle;
mod plan_text;

mod plan;
mod plan_fleet;
mod plan_oracle;

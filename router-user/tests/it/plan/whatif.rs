//! What-if: changes as they are written, what they do, and the messages for those that cannot be
//! made.

use router_user::plan::decide::whatif::{Change, compare};
use router_user::plan::{Inputs, plan};

use crate::plan::fleet::three_regions;

fn changed(text: &str) -> Result<Inputs, String> {
    let fleet = three_regions();
    let mut inputs = Inputs::from_fleet(&fleet);
    let change: Change = text.parse().map_err(|error: router_user::plan::decide::whatif::ChangeError| error.to_string())?;
    change.apply(&fleet, &mut inputs).map_err(|error| error.to_string())?;
    Ok(inputs)
}

#[test]
fn a_change_changes_what_it_names_and_nothing_else() {
    let plain = Inputs::from_fleet(&three_regions());
    let check = |text: &str, change: fn(&mut Inputs)| {
        let mut wanted = plain.clone();
        change(&mut wanted);
        assert_eq!(changed(text).unwrap_or_else(|error| panic!("{text}: {error}")), wanted, "{text}");
    };
    check("engine.e2.replicas=0", |inputs| inputs.ready[1] = 0);
    check("cluster.b.demand_rps.chat=+20%", |inputs| inputs.demand_rps[1][0] = 144.0);
    check("cluster.b.demand_rps.chat=-20", |inputs| inputs.demand_rps[1][0] = 100.0);
    check("cluster.b.demand_rps.chat=7.5", |inputs| inputs.demand_rps[1][0] = 7.5);
    check("rtt_ms.r1.r2=+10", |inputs| inputs.rtt_ms[0][1] = 40.0);
    check("control.headroom=0.25", |inputs| inputs.headroom_frac = 0.25);
}

#[test]
fn a_change_that_cannot_be_made_says_what_is_wanted() {
    for (text, wanted) in [
        ("engine.e2.replicas", "has no value; wanted engine.NAME.replicas=N, cluster.NAME"),
        ("engine.e2.replicas=none", "\"none\" in \"engine.e2.replicas=none\" is no number; wanted 120, +20, -20, +20% or -20%"),
        ("engine.e2.replicas=2", "gives 2; wanted a whole number from 0 to its 1 replicas"),
        ("engine.e9.replicas=0", "names the unknown engine \"e9\"; wanted one of e1, e2, e3"),
        ("engine.e2.speed=3", "is no input that can be changed; wanted engine.NAME.replicas=N"),
        ("weather=3", "is no input that can be changed"),
        ("cluster.b.demand_rps.chat=20%", "is no number"),
        ("cluster.b.demand_rps.chat=-200%", "gives -120; wanted 0 requests/s or more"),
        ("cluster.b.demand_rps.code=1", "unknown class \"code\"; wanted one of chat"),
        ("cluster.z.demand_rps.chat=1", "unknown cluster \"z\"; wanted one of a, b, c"),
        ("cluster.b.demand=1", "is no input that can be changed"),
        ("rtt_ms.r1.r9=1", "unknown way \"r1.r9\"; wanted one of r1.r1, r1.r2"),
        ("control.headroom=1", "gives 1; wanted a fraction from 0 to below 1"),
        ("cluster.b.demand_rps.chat=nan", "is no number"),
    ] {
        let error = changed(text).expect_err(text);
        assert!(error.contains(wanted), "{text}: {error:?} lacks {wanted:?}");
    }
}

#[test]
fn both_plans_and_their_differences_are_told() {
    let fleet = three_regions();
    let (before, after) = (Inputs::from_fleet(&fleet), changed("engine.e2.replicas=0").expect("a change"));
    let plans = [&before, &after].map(|inputs| plan(&fleet, inputs, None).expect("a plan"));
    let change: Change = "engine.e2.replicas=0".parse().expect("a change");
    let comparison = compare(&fleet, &[change], (&before, &plans[0]), (&after, &plans[1]));
    let differences = &comparison.differences;
    assert!((differences.shed_rps - 70.0).abs() < 1e-3, "{differences:?}");
    assert!(differences.engines.iter().any(|row| row.engine == "e2" && row.load_after_rps == 0.0 && row.load_before_rps > 80.0));
    assert!(differences.weights.iter().any(|row| (row.cluster.as_str(), row.engine.as_str(), row.after) == ("b", "e2", 0.0)));
    let text = differences.to_string();
    assert!(text.contains("shed: +70.0 requests/s") && text.contains("engine e2:"), "{text}");
    assert!(comparison.before.shed_bill.is_empty());
    let bill = comparison.after.shed_bill.join("\n");
    assert!(bill.contains("of chat in b are refused: e2 is down; 70.0 more requests/s of e1 or e3 would remove it"), "{bill}");
    let same = compare(&fleet, &[], (&before, &plans[0]), (&before, &plans[0])).differences;
    assert!(same.weights.is_empty() && same.engines.is_empty() && same.to_string().contains("no weight changes"), "{same}");
}

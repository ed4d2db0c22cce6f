use super::*;

const PATIENCE_MS: f64 = 60_000.0;

fn waiter(level: usize, class: u64, share: f64, user: u64) -> Waiter {
    Waiter { level, class, share, user, work: 1.0, home: 0, is_bound: false }
}

/// A request of `user`, and all else alike.
fn of(user: u64) -> Waiter {
    waiter(0, 0, 1.0, user)
}

/// Lets a request in that engine 0 may serve, and pops one for it.
impl FairQueue {
    fn add(&mut self, now: Millis, waiter: Waiter, patience_ms: f64) -> Result<Entered, Refusal> {
        self.enter(now, waiter, patience_ms, || reach(&[0]))
    }

    fn next(&mut self, now: Millis) -> Option<u64> {
        self.pop(now, 0, Ejection::None)
    }
}

fn reach(places: &[Place]) -> Reach {
    Reach { places: places.to_vec(), in_panic: false }
}

/// Serves one request every `pace_ms` while each class, level or user (by index) offers
/// `offered[index]` requests in that time; how many were served and refused, by index.
fn shares(
    queue: &mut FairQueue,
    offered: &[f64],
    places: usize,
    pace_ms: Millis,
    make: impl Fn(usize) -> Waiter,
) -> Vec<(u32, u32)> {
    let mut counts = vec![(0, 0); offered.len()];
    let mut due = vec![0.0; offered.len()];
    let mut owner: HashMap<u64, (usize, Millis)> = HashMap::new();
    for turn in 0..places {
        let now = turn as Millis * pace_ms;
        for (index, rate) in offered.iter().enumerate() {
            due[index] += rate;
            while due[index] >= 1.0 {
                due[index] -= 1.0;
                match queue.add(now, make(index), PATIENCE_MS) {
                    Ok(Entered { id, patience_ms, evicted }) => {
                        owner.insert(id, (index, now + patience_ms));
                        if let Some((id, _)) = evicted {
                            counts[owner.remove(&id).expect("known").0].1 += 1;
                        }
                    }
                    Err(_) => counts[index].1 += 1,
                }
            }
        }
        let late: Vec<u64> = owner.iter().filter(|(_, (_, end))| *end <= now).map(|(&id, _)| id).collect();
        for id in late {
            queue.leave(id);
            counts[owner.remove(&id).expect("known").0].1 += 1;
        }
        if let Some(id) = queue.next(now) {
            counts[owner.remove(&id).expect("known").0].0 += 1;
        }
    }
    counts
}

#[test]
fn a_flood_waits_behind_itself_and_costs_the_others_nothing() {
    let mut queue = FairQueue::new(100);
    // One user offers 15 times what can be served, and twenty others a quarter of it together.
    let offered: Vec<f64> = std::iter::once(15.0).chain([0.25 / 20.0; 20]).collect();
    let counts = shares(&mut queue, &offered, 20_000, 50, |user| of(user as u64));
    assert!(counts[1..].iter().all(|&(served, refused)| refused == 0 && served >= 245), "{counts:?}");
    assert!(counts[0].0 >= 14_900, "what the others leave is the flood's: {counts:?}");
    assert!(queue.len() <= 100);
}

#[test]
fn users_who_all_want_more_than_there_is_get_equal_work() {
    let mut queue = FairQueue::new(60);
    let counts = shares(&mut queue, &[1.0, 1.0, 4.0], 6_000, 50, |user| Waiter {
        work: if user == 1 { 2.0 } else { 1.0 },
        ..of(user as u64)
    });
    // Requests of twice the work come half as often.
    let served: Vec<f64> = counts.iter().map(|&(served, _)| f64::from(served)).collect();
    assert!((served[0] / served[2] - 1.0).abs() < 0.05 && (served[0] / served[1] - 2.0).abs() < 0.1, "{counts:?}");
}

#[test]
fn a_small_class_beside_a_flooded_one_loses_nothing_and_two_flooded_ones_share_as_planned() {
    let make = |class: usize| waiter(0, class as u64, [0.35, 1.15][class], 7 + class as u64);
    let counts = shares(&mut FairQueue::new(100), &[0.1, 3.0], 10_000, 50, make);
    assert!(counts[0].1 == 0 && counts[0].0 >= 995, "{counts:?}");
    let counts = shares(&mut FairQueue::new(100), &[3.0, 3.0], 10_000, 50, make);
    let share = f64::from(counts[0].0) / 10_000.0;
    assert!((share - 0.35 / 1.5).abs() < 0.01, "{share}");
}

#[test]
fn a_higher_priority_goes_first_and_lower_ones_keep_their_reserve() {
    let make = |level: usize| waiter(level, level as u64, 1.0, level as u64);
    let counts = shares(&mut FairQueue::new(200), &[2.0, 0.0, 2.0, 2.0], 9_000, 50, make);
    assert_eq!(counts.iter().map(|&(served, _)| served).sum::<u32>(), 9_000);
    assert!((8_050..=8_150).contains(&counts[0].0), "{counts:?}");
    assert!(counts[2].0 >= 250 && counts[3].0 >= 250, "{counts:?}");
}

#[test]
fn a_full_queue_refuses_the_lowest_priority_and_there_the_user_with_the_most_requests() {
    let mut queue = FairQueue::new(4);
    let low: Vec<u64> = (0..3).map(|_| queue.add(0, waiter(2, 0, 1.0, 1), PATIENCE_MS).unwrap().id).collect();
    queue.add(0, waiter(2, 0, 1.0, 2), PATIENCE_MS).unwrap();
    assert_eq!(queue.add(0, waiter(2, 0, 1.0, 1), PATIENCE_MS), Err(Refusal::OverShare));
    assert_eq!(queue.add(0, waiter(3, 0, 1.0, 9), PATIENCE_MS), Err(Refusal::QueueFull), "a lower priority");
    // In a queue that is served in order the last of the longest goes, for a user with fewer.
    let entered = queue.add(0, waiter(2, 0, 1.0, 3), PATIENCE_MS).unwrap();
    assert_eq!(entered.evicted, Some((low[2], Refusal::OverShare)));
    let urgent = queue.add(0, of(9), PATIENCE_MS).unwrap();
    assert_eq!(urgent.evicted, Some((low[1], Refusal::OverShare)));
    assert_eq!((queue.len(), queue.next(0)), (4, Some(urgent.id)));
}

#[test]
fn in_order_at_first_and_newest_first_once_the_queue_stands() {
    let mut queue = FairQueue::new(100);
    let ids: Vec<u64> = (0..6).map(|_| queue.add(1_000, of(1), PATIENCE_MS).unwrap().id).collect();
    assert_eq!(queue.next(1_000 + STANDS_AFTER_MS - 1), Some(ids[0]));
    assert_eq!(queue.next(1_000 + STANDS_AFTER_MS), Some(ids[5]));
    // Equal users are served in the same order as the requests of one.
    let other = queue.add(1_600, of(2), PATIENCE_MS).unwrap();
    assert_eq!(other.patience_ms, (PATIENCE_MS * PATIENCE_STANDING) as Millis);
    assert_eq!(queue.next(1_600), Some(other.id));
    ids[1..5].iter().for_each(|&id| queue.leave(id));
    let ids: Vec<u64> = (0..2).map(|user| queue.add(9_000, of(user), PATIENCE_MS).unwrap().id).collect();
    assert_eq!(queue.next(9_000), Some(ids[0]), "a queue that was empty begins anew");
}

#[test]
fn what_cannot_make_its_deadline_is_refused_at_once() {
    let mut queue = FairQueue::new(1_000);
    // A place every 100 ms.
    (0..3).for_each(|user| assert!(queue.add(0, of(user), PATIENCE_MS).is_ok()));
    (1..=2).for_each(|turn| assert!(queue.next(100 * turn).is_some()));
    (10..13).for_each(|user| assert!(queue.add(200, of(user), PATIENCE_MS).is_ok()));
    assert_eq!(queue.len(), 4);
    assert_eq!(queue.add(200, of(20), 399.0), Err(Refusal::Deadline));
    assert!(queue.add(200, of(20), 401.0).is_ok());
    assert!((queue.drain_ms() - 500.0).abs() < 1e-6);
    // Of one user no more goes before a newcomer than the newcomer has itself.
    (0..100).for_each(|_| assert!(queue.add(200, of(99), PATIENCE_MS).is_ok()));
    assert!(queue.add(200, of(30), 700.0).is_ok());
}

#[test]
fn an_engine_serves_only_the_classes_and_the_bound_requests_that_it_may_and_of_equals_what_is_its_own() {
    let mut queue = FairQueue::new(10);
    let mut enter = |user, home, is_bound, class, places: &[Place]| {
        let waiter = Waiter { home, is_bound, ..waiter(0, class, 1.0, user) };
        queue.enter(0, waiter, PATIENCE_MS, || reach(places)).unwrap().id
    };
    let (first, second) = (enter(1, 0, false, 0, &[0, 1]), enter(2, 1, false, 0, &[0, 1]));
    let (bound, other) = (enter(3, 0, true, 0, &[]), enter(4, 0, false, 1, &[0]));
    let mut pop = |place| queue.pop(0, place, Ejection::None);
    assert_eq!((pop(7), pop(1)), (None, Some(second)));
    assert_eq!((pop(1), pop(1)), (Some(first), None));
    let mut rest = [pop(0), pop(0), pop(0)];
    rest.sort();
    assert_eq!(rest, [None, Some(bound), Some(other)]);
    assert!(queue.is_empty() && queue.levels.iter().all(Vec::is_empty), "nothing is kept of those that have left");
}

#[test]
fn an_ejected_engine_serves_nobody_but_a_class_in_panic_and_that_only_after_a_soft_ejection() {
    let mut queue = FairQueue::new(10);
    queue.add(0, waiter(0, 0, 1.0, 1), PATIENCE_MS).unwrap();
    let panics = queue.enter(0, waiter(0, 1, 1.0, 2), PATIENCE_MS, || Reach { in_panic: true, ..reach(&[0]) }).unwrap().id;
    assert_eq!(queue.pop(0, 0, Ejection::Hard), None);
    assert_eq!((queue.pop(0, 0, Ejection::Soft), queue.pop(0, 0, Ejection::Soft)), (Some(panics), None));
}

#[test]
fn who_waits_already_gets_the_engines_of_a_new_plan() {
    let mut queue = FairQueue::new(10);
    let old = queue.add(0, waiter(0, 0, 1.0, 1), PATIENCE_MS).unwrap().id;
    queue.add(0, waiter(0, 1, 1.0, 1), PATIENCE_MS).unwrap();
    queue.set_reach(|class| (class == 0).then(|| reach(&[5])));
    assert_eq!((queue.pop(0, 5, Ejection::None), queue.pop(0, 5, Ejection::None)), (Some(old), None));
    assert!(queue.next(0).is_some(), "a class of which the plan says nothing keeps its engines");
}

#[test]
fn the_running_counts_are_those_of_the_requests() {
    let mut queue = FairQueue::new(40);
    let mut ids = Vec::new();
    let mut random = crate::rng::Rng::new(7);
    for turn in 0..20_000 {
        let (level, user) = (random.below(3) as usize, random.below(6));
        match random.below(5) {
            0 => _ = queue.next(turn),
            1 if !ids.is_empty() => queue.leave(ids.swap_remove(random.below(ids.len() as u64) as usize)),
            _ => ids.extend(queue.add(turn, waiter(level, user % 2, 1.0, user), PATIENCE_MS).map(|entered| entered.id)),
        }
        let mut sum = 0;
        for (level, classes) in queue.levels.iter().enumerate() {
            assert_eq!(queue.lengths[level], classes.iter().map(|class| class.length).sum::<usize>());
            for class in classes {
                let lengths: Vec<usize> = (0..6).filter_map(|user| Some(class.of_user(user)?.len())).collect();
                assert!(class.length == lengths.iter().sum::<usize>() && !lengths.contains(&0) && class.length > 0);
                assert_eq!(class.longest(), lengths.iter().max().copied().unwrap_or(0));
                for nth in 0..8 {
                    assert_eq!(class.ahead(nth), lengths.iter().map(|&length| length.min(nth)).sum::<usize>());
                }
                sum += class.length;
            }
        }
        assert_eq!(queue.len(), sum);
    }
}

#[test]
fn an_engine_that_hung_is_forgotten_within_some_places() {
    let mut queue = FairQueue::new(100);
    (0..60).for_each(|user| _ = queue.add(0, of(user), PATIENCE_MS).unwrap());
    queue.next(60_000);
    (1..50).for_each(|turn| _ = queue.next(60_000 + 50 * turn));
    assert!(queue.drain_ms() < 10.0 * 100.0, "{}", queue.drain_ms());
}

#[test]
fn a_class_waits_as_long_as_its_share_lets_it_and_no_longer_than_all_of_its_priority() {
    let mut queue = FairQueue::new(1_000);
    (0..100).for_each(|user| _ = queue.add(0, waiter(0, 0, 0.75, user), PATIENCE_MS).unwrap());
    (0..4).for_each(|turn| _ = queue.next(100 * turn));
    // 96 wait, and a place comes every 75 ms: of the other class every fourth.
    assert_eq!(queue.add(300, waiter(0, 0, 0.75, 200), 7_000.0), Err(Refusal::Deadline));
    assert!(queue.add(300, waiter(0, 1, 0.25, 200), 10.0).is_ok());
    assert_eq!(queue.add(300, waiter(0, 1, 0.25, 201), 290.0), Err(Refusal::Deadline));
    assert!(queue.add(300, waiter(0, 1, 0.25, 201), 320.0).is_ok());
}

// Objects in a map and in a vector: passes, jumps with changes, a checksum.
use std::collections::HashMap;

struct Item {
    number: u64,
    text: String,
    few: Vec<usize>,
}

fn main() {
    let count = 1_200_000;
    let mut all: Vec<Box<Item>> =
        (0..count).map(|i| Box::new(Item { number: i as u64, text: (i * 7919).to_string(), few: vec![i, i + 1, i + 2] })).collect();
    let by_text: HashMap<String, usize> = (0..count).step_by(4).map(|i| (all[i].text.clone(), i)).collect();
    let (mut state, mut sum) = (1u64, 0u64);
    for k in 0..60_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        all[(state >> 33) as usize % count].number += k;
    }
    for _ in 0..2 {
        for item in &all {
            sum = sum.wrapping_mul(3).wrapping_add(item.number + (item.text.len() + item.few[2]) as u64);
        }
    }
    for i in (0..count).step_by(4) {
        sum = sum.wrapping_mul(3).wrapping_add(all[by_text[&(i * 7919).to_string()]].number);
    }
    println!("OK {sum}");
}

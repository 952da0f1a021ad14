// Objects in a dictionary and in an array: passes, jumps with changes, a checksum.
using System;
using System.Collections.Generic;

class Item {
	public long number;
	public string text;
	public int[] few;
}

static class Job {
	static void Main() {
		const int count = 1000000;
		var all = new Item[count];
		var byNumber = new Dictionary<long, Item>();
		for (int i = 0; i < count; i++) {
			all[i] = new Item { number = i, text = (i * 7919L).ToString(), few = new int[] { i, i + 1, i + 2 } };
			if (i % 4 == 0) byNumber[i * 3L] = all[i];
		}
		ulong state = 1, sum = 0;
		for (int k = 0; k < 60000; k++) {
			state = state * 6364136223846793005UL + 1442695040888963407UL;
			all[(int)((state >> 33) % count)].number += k;
		}
		for (int pass = 0; pass < 2; pass++)
			foreach (var item in all) sum = sum * 3 + (ulong)(item.number + item.text.Length + item.few[2]);
		foreach (var pair in byNumber) sum += (ulong)(pair.Key * pair.Value.number);
		Console.WriteLine("OK " + sum);
	}
}

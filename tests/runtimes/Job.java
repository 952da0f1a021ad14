// Objects in a map and in an array: passes, jumps with changes, a checksum.
import java.util.HashMap;

public class Job {
	static final class Item {
		long number;
		String text;
		int[] few;
	}

	public static void main(String[] arguments) {
		final int count = 1000000;
		Item[] all = new Item[count];
		HashMap<Long, Item> byNumber = new HashMap<>();
		for (int i = 0; i < count; i++) {
			Item item = all[i] = new Item();
			item.number = i;
			item.text = Long.toString(i * 7919L);
			item.few = new int[] { i, i + 1, i + 2 };
			if (i % 4 == 0)
				byNumber.put(i * 3L, item);
		}
		long state = 1, sum = 0;
		for (int k = 0; k < 60000; k++) {
			state = state * 6364136223846793005L + 1442695040888963407L;
			all[(int) ((state >>> 33) % count)].number += k;
		}
		for (int pass = 0; pass < 2; pass++)
			for (Item item : all)
				sum = sum * 3 + item.number + item.text.length() + item.few[2];
		for (var pair : byNumber.entrySet())
			sum += pair.getKey() * pair.getValue().number;
		System.out.println("OK " + sum);
	}
}

(* Records in an array and in a hash table: passes, jumps with changes, a checksum. *)
type item = { mutable number : int; text : string; few : int list }

let () =
  let count = 1_000_000 in
  let all = Array.init count (fun i -> { number = i; text = string_of_int (i * 7919); few = [ i; i + 1; i + 2 ] }) in
  let by_text = Hashtbl.create 16 in
  Array.iteri (fun i item -> if i mod 64 = 0 then Hashtbl.replace by_text item.text item) all;
  let state = ref 1 and sum = ref 0 in
  for k = 1 to 60000 do
    state := ((!state * 69069) + 1) land 0xffffffff;
    let item = all.((!state lsr 4) mod count) in
    item.number <- item.number + k
  done;
  for _ = 1 to 2 do
    Array.iter (fun item -> sum := ((!sum * 3) + item.number + String.length item.text + List.length item.few) land 0xffffffff) all
  done;
  for i = 0 to (count - 1) / 64 do
    sum := ((!sum * 3) + (Hashtbl.find by_text (string_of_int (i * 64 * 7919))).number) land 0xffffffff
  done;
  Printf.printf "OK %d\n" !sum

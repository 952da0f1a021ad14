(* Records in an array: passes, jumps with changes, a checksum. For Poly/ML. *)
val count = 1500000
val all = Array.tabulate (count, fn i => (ref i, Int.toString (i * 7919), [i, i + 1, i + 2]))
val state = ref 1
val sum = ref 0
fun jump 0 = ()
  | jump k =
    (state := (!state * 69069 + 1) mod 4294967296;
     let val (number, _, _) = Array.sub (all, (!state div 16) mod count) in number := !number + k end;
     jump (k - 1))
val _ = jump 60000
fun pass () = Array.app (fn (number, text, few) => sum := (!sum * 3 + !number + size text + length few) mod 4294967296) all
val _ = (pass (); pass ())
val _ = print ("OK " ^ Int.toString (!sum) ^ "\n")
val _ = OS.Process.exit OS.Process.success

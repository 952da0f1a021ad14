%% A table of tuples and a list of binaries: passes, jumps with changes, a checksum.
-module(job).
-export([main/0]).

count() -> 600000.

main() ->
    Table = ets:new(all, [set]),
    [ets:insert(Table, {I, I * 3, integer_to_list(I * 7919)}) || I <- lists:seq(0, count() - 1)],
    List = [integer_to_binary(I * 104729) || I <- lists:seq(1, 600000)],
    _ = jump(Table, 60000, 1),
    Sum = ets:foldl(fun({I, N, S}, A) -> (A + (I + 1) * (N + length(S))) band 16#ffffffffffff end, 0, Table),
    Other = lists:foldl(fun(B, A) -> (A * 3 + byte_size(B) + binary:last(B)) band 16#ffffffffff end, 0, List),
    io:format("OK ~b ~b~n", [Sum, Other]),
    halt(0).

jump(_, 0, State) -> State;
jump(Table, N, State) ->
    Next = (State * 6364136223 + 1442695040888963407) band 16#ffffffffffff,
    ets:update_counter(Table, (Next bsr 8) rem count(), {2, N}),
    jump(Table, N - 1, Next).

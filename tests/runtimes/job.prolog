% Facts with terms, by number: a pass, jumps with changes, a checksum.
:- dynamic item/3.
make(N, N) :- !.
make(I, N) :- T is I * 7919, assertz(item(I, text(T, [I, T]), I)), J is I + 1, make(J, N).
jump(0, _) :- !.
jump(K, S) :-
    S1 is (S * 69069 + 1) mod 4294967296, I is (S1 // 16) mod 400000,
    retract(item(I, T, N)), N1 is N + K, assertz(item(I, T, N1)),
    K1 is K - 1, jump(K1, S1).
main :-
    make(0, 400000), jump(40000, 1),
    numlist(1, 1500000, L), sum_list(L, A),
    aggregate_all(sum(X), (item(I, text(T, [I, T]), N), X is (N * (I + 1) + T) mod 65521), B),
    format("OK ~w ~w~n", [A, B]).
:- initialization((main, halt)).

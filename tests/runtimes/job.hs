-- A strict map of numbers to strings: a pass, jumps with changes, a checksum.
import qualified Data.IntMap.Strict as M
import Data.Bits (shiftR, (.&.))
import Data.List (foldl')

count :: Int
count = 600000

mix :: Int -> Int
mix x = (x * 6364136223 + 1442695040888963407) .&. 0xffffffffffff

main :: IO ()
main = do
  let start = M.fromList [(i, (i * 3, show (i * 7919))) | i <- [0 .. count - 1]]
      jump (m, s) k = let t = mix s in (M.adjust (\(a, b) -> (a + k, b)) ((t `shiftR` 8) `mod` count) m, t)
      (after, _) = foldl' jump (start, 1) [1 .. 60000]
      total = foldl' (\a (n, s) -> (a * 3 + n + length s) .&. 0xffffffffff) 0
  putStrLn ("OK " ++ show (total (M.elems start)) ++ " " ++ show (total (M.elems after)))

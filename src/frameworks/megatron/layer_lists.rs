//! Which layers have something, as flags of Megatron-LM list it.

use super::super::export::one_line;
use super::super::shell::ImportError;
use super::flags::{Read, integer};

/// A list expression such as `([0]*3+[1]*58)`, or an integer n: every n-th layer, the first included.
pub(super) fn flags_of(text: &str, layers: u64, line: usize) -> Read<Vec<bool>> {
    let bad = |why: String| ImportError::new(line, format!("the layer pattern `{}` {why}", one_line(text)));
    // In Python, n and -n divide alike.
    if let Some(n) = integer(text).and_then(|n| u64::try_from(n.unsigned_abs()).ok()) {
        if n == 0 {
            return Err(bad("repeats every 0 layers".into()));
        }
        return Ok((0..layers).map(|layer| layer % n == 0).collect());
    }
    // training/arguments.py _eval_pattern.
    if text.contains(char::is_whitespace) {
        return Err(bad("has blanks, which the parser refuses".into()));
    }
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let list = sum_of_lists(&chars, &mut at, 0).filter(|_| at == chars.len());
    let list = list.ok_or_else(|| bad("is no list expression".into()))?;
    if list.len() as u64 != layers {
        return Err(bad(format!("has {} entries for {layers} layers", list.len())));
    }
    Ok(list)
}

/// `term + term …`.
fn sum_of_lists(chars: &[char], at: &mut usize, depth: u32) -> Option<Vec<bool>> {
    let mut list = repeated_list(chars, at, depth)?;
    while chars.get(*at) == Some(&'+') {
        *at += 1;
        list.extend(repeated_list(chars, at, depth)?);
    }
    Some(list)
}

/// `[0,1]`, `(…)`, each with `*n` behind it.
fn repeated_list(chars: &[char], at: &mut usize, depth: u32) -> Option<Vec<bool>> {
    let open = *chars.get(*at)?;
    if depth > 32 {
        return None;
    }
    *at += 1;
    let mut list = match open {
        '(' => {
            let list = sum_of_lists(chars, at, depth + 1)?;
            (chars.get(*at) == Some(&')')).then_some(())?;
            *at += 1;
            list
        }
        '[' => {
            let mut list = Vec::new();
            loop {
                match chars.get(*at)? {
                    '0' => list.push(false),
                    '1' => list.push(true),
                    ',' => {}
                    ']' => break,
                    _ => return None,
                }
                *at += 1;
            }
            *at += 1;
            list
        }
        _ => return None,
    };
    while chars.get(*at) == Some(&'*') {
        *at += 1;
        let digits: String = chars[*at..].iter().take_while(|c| c.is_ascii_digit()).collect();
        *at += digits.len();
        let count: usize = digits.parse().ok()?;
        if list.len().checked_mul(count)? > 1 << 20 {
            return None;
        }
        list = list.repeat(count);
    }
    Some(list)
}

//! Where the conditions of a source file are: every expression that decides something and is true or false.

use std::{collections::BTreeSet, ops::Range};

use syn::{
    Attribute, Block, Expr, ExprClosure, ExprMethodCall, ImplItemFn, ItemConst, ItemFn, ItemMod, ItemStatic, Lit,
    Macro, Pat, ReturnType, Signature, Stmt, Token, Type,
    punctuated::Punctuated,
    spanned::Spanned as _,
    visit::{self, Visit},
};

/// Methods whose closure says yes or no.
const PREDICATES: [&str; 14] = [
    "all",
    "any",
    "filter",
    "find",
    "is_err_and",
    "is_none_or",
    "is_ok_and",
    "is_some_and",
    "partition",
    "position",
    "retain",
    "rposition",
    "skip_while",
    "take_while",
];

/// Methods that say yes or no themselves, besides those that begin with `is_` or `has_`.
const ANSWERS: [&str; 7] = ["all", "any", "contains", "contains_key", "ends_with", "eq", "starts_with"];

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its bytes in the file.
    pub bytes: Range<usize>,
    /// Its first line, from 1.
    pub line: usize,
    /// The function it is in, with its type: `Setup::captures`.
    pub function: String,
    /// Whether it is the name of a function instead of an expression: `filter(is_free)`.
    pub is_name: bool,
}

/// Every condition of a file outside its tests, in their order.
///
/// # Errors
/// When the text is no Rust.
pub fn conditions(text: &str) -> syn::Result<Vec<Condition>> {
    let mut finder = Finder::default();
    finder.visit_file(&syn::parse_file(text)?);
    let mut found: Vec<Condition> = finder.found.into_iter().filter(|it| !finder.twice.contains(&key(it))).collect();
    found.sort_by_key(|it| (it.bytes.start, it.bytes.end));
    found.dedup_by_key(|it| key(it));
    Ok(found)
}

fn key(condition: &Condition) -> (usize, usize) {
    (condition.bytes.start, condition.bytes.end)
}

#[derive(Default)]
struct Finder {
    found: Vec<Condition>,
    /// What `!` stands before: to invert both is to invert the same thing twice.
    twice: BTreeSet<(usize, usize)>,
    place: Vec<String>,
    /// Whether the function, or closure, at hand returns a boolean.
    answers: bool,
}

impl Finder {
    /// An expression that is true or false, and those it is made of.
    fn condition(&mut self, expr: &Expr) {
        match expr {
            Expr::Let(_) | Expr::Continue(_) | Expr::Break(_) | Expr::Return(_) => {}
            Expr::Paren(it) => self.condition(&it.expr),
            Expr::Group(it) => self.condition(&it.expr),
            Expr::Block(it) => self.tail(&it.block),
            Expr::If(it) => {
                self.tail(&it.then_branch);
                if let Some((_, otherwise)) = &it.else_branch {
                    self.condition(otherwise);
                }
            }
            Expr::Match(it) => it.arms.iter().for_each(|arm| self.condition(&arm.body)),
            Expr::Binary(it) if is_compound(expr) => {
                if !has_let(expr) {
                    self.mark(expr, false);
                }
                self.condition(&it.left);
                self.condition(&it.right);
            }
            Expr::Unary(it) if matches!(it.op, syn::UnOp::Not(_)) => {
                self.mark(expr, false);
                let inner = bare(&it.expr);
                let bytes = inner.span().byte_range();
                self.twice.insert((bytes.start, bytes.end));
                if let Expr::Binary(it) = inner
                    && is_compound(inner)
                {
                    self.condition(&it.left);
                    self.condition(&it.right);
                }
            }
            Expr::Macro(it) if !it.mac.path.is_ident("matches") => {}
            _ => self.mark(expr, false),
        }
    }

    fn tail(&mut self, block: &Block) {
        if let Some(Stmt::Expr(expr, None)) = block.stmts.last() {
            self.condition(expr);
        }
    }

    fn mark(&mut self, expr: &Expr, is_name: bool) {
        let (span, function) = (expr.span(), self.place.join("::"));
        self.found.push(Condition { bytes: span.byte_range(), line: span.start().line, function, is_name });
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.place.push(name);
        visit(self);
        self.place.pop();
    }

    fn function(
        &mut self,
        attributes: &[Attribute],
        signature: &Signature,
        block: &Block,
        visit: impl FnOnce(&mut Self),
    ) {
        if signature.constness.is_some() || is_test(attributes) {
            return;
        }
        self.within(signature.ident.to_string(), |this| {
            let outer = std::mem::replace(&mut this.answers, returns_bool(&signature.output));
            if this.answers {
                this.tail(block);
            }
            visit(this);
            this.answers = outer;
        });
    }
}

impl<'a> Visit<'a> for Finder {
    fn visit_item_mod(&mut self, it: &'a ItemMod) {
        if !is_test(&it.attrs) {
            visit::visit_item_mod(self, it);
        }
    }

    // They are computed before the program runs.
    fn visit_item_const(&mut self, _: &'a ItemConst) {}

    fn visit_item_static(&mut self, _: &'a ItemStatic) {}

    fn visit_item_impl(&mut self, it: &'a syn::ItemImpl) {
        let name = match &*it.self_ty {
            Type::Path(path) => path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string()),
            _ => String::new(),
        };
        self.within(name, |this| visit::visit_item_impl(this, it));
    }

    fn visit_item_fn(&mut self, it: &'a ItemFn) {
        self.function(&it.attrs, &it.sig, &it.block, |this| visit::visit_item_fn(this, it));
    }

    fn visit_impl_item_fn(&mut self, it: &'a ImplItemFn) {
        self.function(&it.attrs, &it.sig, &it.block, |this| visit::visit_impl_item_fn(this, it));
    }

    fn visit_expr_closure(&mut self, it: &'a ExprClosure) {
        let outer = std::mem::replace(&mut self.answers, returns_bool(&it.output));
        visit::visit_expr_closure(self, it);
        self.answers = outer;
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::If(it) => self.condition(&it.cond),
            Expr::While(it) => self.condition(&it.cond),
            Expr::Match(it) => {
                if it.arms.iter().any(|arm| is_bool(&arm.pat)) {
                    self.condition(&it.expr);
                }
                it.arms.iter().filter_map(|arm| arm.guard.as_ref()).for_each(|(_, guard)| self.condition(guard));
            }
            Expr::Return(it) if self.answers => it.expr.iter().for_each(|it| self.condition(it)),
            Expr::Binary(it) if is_compound(expr) || is_comparison(it.op) => self.condition(expr),
            Expr::Unary(it) if matches!(it.op, syn::UnOp::Not(_)) => self.condition(expr),
            Expr::MethodCall(it) => self.call(expr, it),
            Expr::Call(it) if answers_as_function(&it.func) && !it.args.is_empty() => self.condition(expr),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_macro(&mut self, it: &'a Macro) {
        let Ok(arguments) = it.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) else { return };
        arguments.iter().for_each(|argument| self.visit_expr(argument));
    }
}

impl Finder {
    fn call(&mut self, expr: &Expr, call: &ExprMethodCall) {
        let name = call.method.to_string();
        // A method of our own has the name of an iterator's, and another closure.
        let own = matches!(&*call.receiver, Expr::Path(it) if it.path.is_ident("self"));
        if PREDICATES.contains(&name.as_str()) && !own {
            match call.args.last() {
                Some(Expr::Closure(closure)) => self.condition(&closure.body),
                Some(path @ Expr::Path(it)) if it.path.segments.last().is_some_and(is_function) => {
                    self.mark(path, true)
                }
                _ => {}
            }
        }
        // `Remedy` has a `then` too: it takes a value.
        let deferred = |argument: &Expr| match argument {
            Expr::Closure(_) => true,
            Expr::Path(it) => it.path.segments.len() > 1,
            _ => false,
        };
        if name == "then_some" || name == "then" && call.args.first().is_some_and(deferred) {
            self.condition(&call.receiver);
        }
        let answers = match name.as_str() {
            // Those of iterators take a predicate; others may be of our own, and return anything.
            "all" | "any" => !own && matches!(call.args.last(), Some(Expr::Closure(_) | Expr::Path(_))),
            name if ANSWERS.contains(&name) => !call.args.is_empty(),
            name => is_answer(name),
        };
        if answers {
            self.condition(expr);
        }
    }
}

fn is_answer(name: &str) -> bool {
    ANSWERS.contains(&name) || name.starts_with("is_") || name.starts_with("has_")
}

/// Whether what is called as a function says yes or no. A closure may have the name of an iterator's method, and return anything.
fn answers_as_function(function: &Expr) -> bool {
    let Expr::Path(path) = function else { return false };
    let name = path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
    is_answer(&name) && !(path.path.segments.len() == 1 && ANSWERS.contains(&name.as_str()))
}

/// Whether a path ends in a function's name: a variable that holds a closure may be no reference to one.
fn is_function(last: &syn::PathSegment) -> bool {
    is_answer(&last.ident.to_string())
}

fn is_compound(expr: &Expr) -> bool {
    matches!(expr, Expr::Binary(it) if matches!(it.op, syn::BinOp::And(_) | syn::BinOp::Or(_)))
}

fn is_comparison(op: syn::BinOp) -> bool {
    use syn::BinOp::{Eq, Ge, Gt, Le, Lt, Ne};
    matches!(op, Eq(_) | Ne(_) | Lt(_) | Le(_) | Gt(_) | Ge(_))
}

/// Whether a chain of conditions has a pattern, so that it is none as a whole.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        _ => false,
    }
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(it) => bare(&it.expr),
        _ => expr,
    }
}

fn is_bool(pattern: &Pat) -> bool {
    matches!(pattern, Pat::Lit(it) if matches!(it.lit, Lit::Bool(_)))
}

fn returns_bool(output: &ReturnType) -> bool {
    matches!(output, ReturnType::Type(_, of) if matches!(&**of, Type::Path(path) if path.path.is_ident("bool")))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("test")
            || it.path().is_ident("cfg") && it.parse_args::<syn::Ident>().is_ok_and(|it| it == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        conditions(text).expect("it is Rust").into_iter().map(|it| &text[it.bytes]).collect()
    }

    #[test]
    fn each_part_of_a_condition_is_one() {
        assert_eq!(found("fn f() { if a && !(b || c) {} }"), ["a", "a && !(b || c)", "!(b || c)", "b", "c"]);
        assert_eq!(found("fn f() { if let Some(a) = b && a.ready {} }"), ["a.ready"]);
        assert_eq!(found("fn f() { match a { Some(b) if b > 1 => {} _ => {} } }"), ["b > 1"]);
        assert_eq!(found("fn f() { match a { true => {} false => {} } }"), ["a"]);
    }

    #[test]
    fn what_a_predicate_or_a_boolean_function_ends_with_is_one() {
        assert_eq!(found("fn f() { a.filter(|b| b.ready) }"), ["b.ready"]);
        assert_eq!(found("fn f() { a.all(Option::is_none) }"), ["a.all(Option::is_none)", "Option::is_none"]);
        assert_eq!(found("fn f() -> bool { match a { B => c, D => { e } } }"), ["c", "e"]);
        assert_eq!(found("fn f() { vec![a.contains(&b)] }"), ["a.contains(&b)"]);
        assert_eq!(
            found("fn f() { a.then_some(b); c.then(|| d); e.then(Vec::new); steps.then(last) }"),
            ["a", "c", "e"]
        );
    }

    #[test]
    fn what_only_has_the_name_of_an_iterators_method_is_none() {
        let others = [
            "a.all()",
            "let all = |b| b + 1; all(2)",
            "let any = || services.iter(); any().next()",
            "any(Some(a)).iter().count()",
            "counts.all(3)",
            "self.any(|b| b.name)",
            "a.then(any)",
        ];
        for text in others {
            assert_eq!(found(&format!("fn f() {{ {text} }}")), [""; 0], "{text}");
        }
        assert_eq!(found("fn f() { a.any(covers) }"), ["a.any(covers)"]);
        assert_eq!(found("fn f() { Iterator::any(&mut a, covers) }"), ["Iterator::any(&mut a, covers)"]);
        assert_eq!(found("fn f() { is_free(a) }"), ["is_free(a)"]);
    }

    #[test]
    fn tests_and_constants_have_none() {
        assert_eq!(found("#[cfg(test)] mod tests { fn f() { if a {} } }"), [""; 0]);
        assert_eq!(found("const A: bool = 1 > 2; const fn f() -> bool { true }"), [""; 0]);
    }

    #[test]
    fn a_condition_knows_its_function_and_line() {
        let text = "impl Setup {\n fn captures(&self) -> bool {\n self.listed\n }\n}";
        let [condition] = &conditions(text).expect("it is Rust")[..] else { panic!("one") };
        assert_eq!((condition.function.as_str(), condition.line), ("Setup::captures", 3));
    }
}

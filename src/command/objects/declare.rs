//! How `create` and `set` of a kind of objects are declared.

/// Declares the two, which take the same options: argh cannot take them from another struct. Each option is a field
/// of `spec`.
macro_rules! create_and_set {
    (
        $(#[doc = $create_doc:tt])+
        #[example = $create_example:tt]
        $create:ident,
        $(#[doc = $set_doc:tt])+
        #[example = $set_example:tt]
        $set:ident,
        $(#[doc = $name_doc:tt])+
        name,
        $($(#[doc = $doc:tt])+ $option:ident: $outer:ident<$inner:ident> => $field:literal,)+
    ) => {
        create_and_set! {
            @verb "create", create, $create, $create_example, [$($create_doc)+], [$($name_doc)+],
            $([$($doc)+] $option: $outer<$inner> => $field,)+
        }
        create_and_set! {
            @verb "set", set, $set, $set_example, [$($set_doc)+], [$($name_doc)+],
            $([$($doc)+] $option: $outer<$inner> => $field,)+
        }
    };
    (
        @verb $verb:tt, $make:ident, $options:ident, $example:tt, [$($about:tt)+], [$($name_doc:tt)+],
        $([$($doc:tt)+] $option:ident: $outer:ident<$inner:ident> => $field:literal,)+
    ) => {
        $(#[doc = $about])+
        #[derive(argh::FromArgs, argh::ArgsInfo, Debug)]
        #[argh(
            subcommand,
            name = $verb,
            example = $example,
            error_code(1, "it is invalid: nothing was changed"),
            error_code(69, "etcd cannot be reached, or refuses")
        )]
        pub struct $options {
            $(#[doc = $name_doc])+
            #[argh(positional)]
            name: String,
            $($(#[doc = $doc])+ #[argh(option)] $option: $outer<$inner>,)+
            /// only show what would change
            #[argh(switch)]
            dry_run: bool,
            /// print one JSON object
            #[argh(switch)]
            json: bool,
        }

        impl $options {
            fn run(&self, call: &mut Call<'_>) -> Result<Outcome, Exit> {
                let fields = [$(self.$option.spec($field)),+].concat();
                KIND.$make(call, &self.name, &fields, (self.dry_run, self.json))
            }
        }
    };
}

pub(super) use create_and_set;

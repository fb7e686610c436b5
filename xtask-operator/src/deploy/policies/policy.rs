//! A policy as static data, and the objects that it becomes.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
    Variable,
};

use super::super::object::{Object, Site};

type Words = &'static [&'static str];

/// A policy that denies. Its binding has its name.
///
/// In expressions, `$OPERATOR` stands for the operator's user, `$NAMESPACE` for its namespace, and `$WICD_SECONDS` for the longest life of wicd's
/// certificates.
pub(super) struct Policy {
    pub file: &'static str,
    pub name: &'static str,
    pub about: &'static str,
    /// API groups, resources and operations that it is asked for.
    pub resources: &'static [(Words, Words, Words)],
    /// When it is asked.
    pub conditions: &'static [Named],
    pub variables: &'static [Named],
    /// What must be so, and what is said if it is not.
    pub validations: &'static [(&'static str, &'static str)],
}

/// An expression with a name.
pub(super) struct Named {
    name: &'static str,
    expression: &'static str,
    why: &'static str,
}

pub(super) const fn named(name: &'static str, expression: &'static str) -> Named {
    Named { name, expression, why: "" }
}

impl Named {
    pub(super) const fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

impl Policy {
    /// The policy and its binding.
    pub(super) fn objects(&self, site: &Site) -> [Object; 2] {
        self.written(self.typed(site))
    }

    /// The policy and its binding as objects with the comments of this one.
    pub(super) fn written(
        &self,
        (policy, binding): (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding),
    ) -> [Object; 2] {
        let mut policy = Object::new(self.file, self.about, &policy);
        for (at, variable) in self.variables.iter().enumerate().filter(|(_, variable)| !variable.why.is_empty()) {
            policy = policy.why(format!("/spec/variables/{at}"), variable.why);
        }
        [policy, Object::new(self.file, "", &binding)]
    }

    /// The policy and its binding.
    pub(super) fn typed(&self, site: &Site) -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
        let metadata = site.meta(self.name, "admission");
        let policy = ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(self.spec(site)),
            ..ValidatingAdmissionPolicy::default()
        };
        let spec = ValidatingAdmissionPolicyBindingSpec {
            policy_name: self.name.into(),
            validation_actions: vec!["Deny".into()],
            ..ValidatingAdmissionPolicyBindingSpec::default()
        };
        (policy, ValidatingAdmissionPolicyBinding { metadata, spec })
    }

    fn spec(&self, site: &Site) -> ValidatingAdmissionPolicySpec {
        let cel = |expression: &str| site.fill(&dedent(expression));
        let rule = |(groups, resources, operations): &(Words, Words, Words)| NamedRuleWithOperations {
            api_groups: Some(owned(groups)),
            api_versions: Some(vec!["*".into()]),
            resources: Some(owned(resources)),
            operations: Some(owned(operations)),
            ..NamedRuleWithOperations::default()
        };
        let condition = |one: &Named| MatchCondition { name: one.name.into(), expression: cel(one.expression) };
        let variable = |one: &Named| Variable { name: one.name.into(), expression: cel(one.expression) };
        let validation = |(expression, message): &(&str, &str)| Validation {
            expression: cel(expression),
            message: Some((*message).into()),
            ..Validation::default()
        };
        let variables: Vec<_> = self.variables.iter().map(variable).collect();
        ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".into()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(self.resources.iter().map(rule).collect()),
                ..MatchResources::default()
            }),
            match_conditions: (!self.conditions.is_empty()).then(|| self.conditions.iter().map(condition).collect()),
            variables: (!variables.is_empty()).then_some(variables),
            validations: Some(self.validations.iter().map(validation).collect()),
            ..ValidatingAdmissionPolicySpec::default()
        }
    }
}

fn owned(words: Words) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// A text without the empty lines around it and the indentation that all its lines have.
pub(super) fn dedent(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let indent = lines.iter().map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
    lines.iter().map(|line| line[indent..].trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_lose_the_indentation_of_the_source_and_keep_their_own() {
        for (text, expected) in [
            ("a == b", "a == b"),
            ("\n        a ||\n          (b &&\n           c)\n    ", "a ||\n  (b &&\n   c)"),
            ("", ""),
        ] {
            assert_eq!(dedent(text), expected);
        }
    }
}

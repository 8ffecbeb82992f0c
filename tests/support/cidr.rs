//! The functions of the Kubernetes API's rules that are about subnets.
//!
//! Source: kubernetes.io, "Common Expression Language in Kubernetes", Kubernetes CIDR library, and
//! k8s.io/apiserver/pkg/cel/library/cidr.go.

use std::net::IpAddr;
use std::sync::Arc;

use cel::extractors::This;
use cel::objects::Opaque;
use cel::{Context, ExecutionError};

/// A subnet, maybe with host bits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cidr {
    address: IpAddr,
    bits: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ip(IpAddr);

impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        "net.CIDR"
    }
}

impl Opaque for Ip {
    fn runtime_type_name(&self) -> &str {
        "net.IP"
    }
}

impl Cidr {
    /// As netip.ParsePrefix of Go; no IPv4 address as IPv6, which Kubernetes refuses besides.
    fn parse(text: &str) -> Option<Cidr> {
        let (address, bits) = text.rsplit_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = bits == "0" || !bits.starts_with('0');
        let bits: u8 = bits.parse().ok().filter(|_| is_number && is_short && !is_mapped)?;
        (bits <= Self::width(address)).then_some(Cidr { address, bits })
    }

    fn width(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    fn masked(&self) -> IpAddr {
        let host = u32::from(Self::width(self.address) - self.bits);
        match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(host).unwrap_or_default();
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(host).unwrap_or_default();
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let other = Cidr { address, bits: self.bits };
        self.address.is_ipv4() == address.is_ipv4() && self.masked() == other.masked()
    }
}

/// `value` as that type.
fn as_type<T: Clone + 'static>(what: &str, value: &Arc<dyn Opaque>) -> Result<T, ExecutionError> {
    let other = || ExecutionError::function_error(what, value.runtime_type_name());
    value.downcast_ref::<T>().cloned().ok_or_else(other)
}

/// Adds `isCIDR`, `cidr`, `ip`, `family`, `masked`, `containsIP` and `prefixLength`. There is no `containsCIDR`: some
/// releases of Kubernetes 1.31 and 1.32 have one that finds no part of a subnet but one at its beginning.
///
/// Source: https://github.com/kubernetes/kubernetes/issues/130441
pub fn add_functions(context: &mut Context<'_, '_>) {
    type Object = Arc<dyn Opaque>;
    type Answer = Result<Object, ExecutionError>;
    let parse = |text: Arc<String>| -> Answer {
        let invalid = || ExecutionError::function_error("cidr", format!("{text} is no CIDR"));
        Ok(Arc::new(Cidr::parse(&text).ok_or_else(invalid)?))
    };
    let masked = |This(this): This<Object>| -> Answer {
        let cidr: Cidr = as_type("masked", &this)?;
        Ok(Arc::new(Cidr { address: cidr.masked(), ..cidr }))
    };
    let ip = |This(this): This<Object>| -> Answer {
        Ok(Arc::new(Ip(as_type::<Cidr>("ip", &this)?.address)))
    };
    let family = |This(this): This<Object>| -> Result<i64, ExecutionError> {
        Ok(if as_type::<Ip>("family", &this)?.0.is_ipv4() { 4 } else { 6 })
    };
    let contains = |This(this): This<Object>, other: Object| -> Result<bool, ExecutionError> {
        let Ip(address) = as_type("containsIP", &other)?;
        Ok(as_type::<Cidr>("containsIP", &this)?.contains(address))
    };
    let length = |This(this): This<Object>| -> Result<i64, ExecutionError> {
        Ok(as_type::<Cidr>("prefixLength", &this)?.bits.into())
    };
    context.add_function("isCIDR", |text: Arc<String>| Cidr::parse(&text).is_some()).unwrap();
    context.add_function("cidr", parse).unwrap();
    context.add_function("masked", masked).unwrap();
    context.add_function("ip", ip).unwrap();
    context.add_function("family", family).unwrap();
    context.add_function("containsIP", contains).unwrap();
    context.add_function("prefixLength", length).unwrap();
}
